# ruff: noqa: E501  (sentences and word lists are easier to read unbroken)
"""Plots about a way to go, a task to do, or the weather."""

from tools.demo_model.data.plots import Plot, may, must

ERRAND = Plot(
    name="errand",
    things="letter, basket, cake, book, jar of honey, pot of jam, lamp, clock, blanket, key, map, parcel of tea, violin, hat, pie, bag of nuts, loaf of bread, music box, umbrella, coat, rope, bell, lantern, telescope, story book, flute",
    clause="had to bring a {t} to {g}",
    outcome="{h} brought the {t} to {g} in time",
    theme="a long way",
    lesson="[A long way is made of small steps|If you keep going, you will arrive]",
    titles=("The Long Way", "A {T} for {G}", "{Hn} Keeps {His} Promise"),
    variants=(
        {
            "block": "a river without a bridge",
            "solve": "{f} knew a place with flat stones, and they jumped from stone to stone",
            "why": "{g} needed it before night",
        },
        {
            "block": "a thick fog",
            "solve": "{f} walked in front and rang a bell, so that {h} could follow the sound",
            "why": "{g} was waiting for it",
        },
        {
            "block": "a fallen tree across the road",
            "solve": "{f} showed {him} a small gap under the trunk, and they crawled through",
            "why": "{g} could not come to get it",
        },
        {
            "block": "a big dog that barked at everyone",
            "solve": "{f} gave the dog a bit of {food}, and the dog wagged its tail and let them pass",
            "why": "it was the birthday of {g}",
        },
        {
            "block": "two roads and no sign",
            "solve": "{f} had seen {g} take the left road that morning, so they took the left road",
            "why": "{h} had promised it",
        },
        {
            "block": "a hill covered with ice",
            "solve": "{f} had a bag of sand, and they threw it on the ice before each step",
            "why": "{g} had asked for it {number} days ago",
        },
    ),
    beats=(
        must(
            "{time}, {h} had to bring a {tt} to {g}, who lived far away. It was important, because {why}.",
            '"Can you take this {t} to {g}?" somebody asked {h}. "Yes," {he} said. It could not wait, because {why}.',
        ),
        must(
            "{h} put the {t} in a bag and set out. It was {weather}.",
            "So {he} took the {t} under {his} arm and started to walk.",
        ),
        may(
            "{he} passed a place {spot}, and then a place {spot2}. Nobody was there.",
            'A {junk_animal} wanted {him} to stay and play. "Not today," said {h}. "I have a promise to keep."',
            "After an hour {his} feet hurt, and {he} sat down {spot} for a minute.",
        ),
        must(
            "Then {he} came to {block}. {h} did not know how to go on.",
            'Half of the way was behind {him} when {he} met {block}. "What now?" {he} thought.',
        ),
        must('{fintro} was there. "I can help you," said {f}. {solve}.', "Luckily, {h} met {fintro} there. {solve}."),
        must(
            'In the evening {h} knocked on the door. {g} opened it and saw the {t}. "You came all this way!" said {g}.',
            '"Here is your {t}," said {h} when {g} opened the door. "I was hoping you would come," said {g}.',
        ),
        must(
            "{g} gave them {food}, and they sat by the fire. {h} felt {glad}.",
            "{h} was tired, but {he} felt {glad}. A promise is a promise.",
        ),
    ),
    questions=(
        ("What did {h} have to bring?", "{h} had to bring a {t}."),
        ("Who was the {t} for?", "The {t} was for {g}."),
        ("What was in the way?", "In the way was {block}."),
        ("Who helped {h}?", "{f} helped {h}."),
    ),
)

STRAY = Plot(
    name="stray",
    clause="got lost {outside}",
    outcome="{h} found the way home by {sign}",
    theme="getting lost",
    lesson="[When you are lost, stop and think|Stay calm, and look at what you know]",
    titles=("{Hn} Gets Lost", "The Way Home", "Far from Home"),
    variants=(
        {
            "lure": "{he} was following a butterfly and did not look where {he} was going",
            "sign": "following the sound of the church bell",
            "idea": "The bell of home rings every hour. I only have to walk towards it",
        },
        {
            "lure": "{he} wanted to take a short cut",
            "sign": "walking along the stream",
            "idea": "The stream goes past my home. If I walk along it, I will get there",
        },
        {
            "lure": "it had begun to snow, and everything looked the same",
            "sign": "following {his} own footprints",
            "idea": "My own footprints are still in the snow. They will take me back",
        },
        {
            "lure": "{he} was looking for {food} and went too far",
            "sign": "the smell of fresh bread",
            "idea": "I can smell bread, and the bakery is next to my home",
        },
        {
            "lure": "{he} was dreaming and took the wrong path",
            "sign": "looking for the tall tower",
            "idea": "From up here I can see the tower. Home is right behind it",
        },
    ),
    beats=(
        must(
            '{time}, {h} went for a walk. {g} said, "Do not go too far." "I will not," said {h}.',
            "{time}, {h} went out alone. It was {weather}, and {he} was in a good mood.",
        ),
        must(
            "But {lure}. After a while {he} stood {outside} and did not know the way.",
            "{lure}. Suddenly {he} stopped. {he} had never been here before.",
        ),
        must(
            '{h} felt {sad}. "Is anybody there?" {he} called. Nobody answered.',
            "The sun was going down. {h} wanted to cry.",
        ),
        may(
            "{he} ran to the left, and {he} ran to the right. That only made it worse.",
            "Something moved {spot2}. It was only {junk}.",
            "{he} ate the last bit of {food} from {his} bag and felt a little better.",
        ),
        must(
            'Then {fintro} came along. "I do not know your home," said {f}, "but what do you know about it?" {h} thought. "{idea}!"',
            '"Stop and think," {h} told {himself}. And then {he} had it. "{idea}!"',
        ),
        must(
            "So {h} found the way by {sign}. It was almost dark when {he} saw the light of home.",
            "By {sign}, step by step, {h} came home.",
        ),
        must(
            '{g} was standing at the door. "I was so worried," said {g}, and hugged {him}. {h} felt {glad}.',
            "That night {h} lay in {his} own bed and felt {glad}.",
        ),
    ),
    questions=(
        ("Where did {h} get lost?", "{h} got lost {outside}."),
        ("How did {h} find the way home?", "{h} found the way home by {sign}."),
        ("Who was waiting at home?", "{g} was waiting at home."),
    ),
)

STORM = Plot(
    name="storm",
    clause="was caught in a big storm",
    outcome="everyone was safe because {h} and {f} worked together",
    theme="a storm",
    lesson="[Together we are stronger than alone|A good neighbour is better than a strong wall]",
    titles=("The Big Storm", "{Hn} and the Storm", "After the Rain"),
    variants=(
        {
            "danger": "The water came up to the door",
            "act": "carried sand and stones and built a wall against the water",
            "after": "the water went down, and the houses were dry",
        },
        {
            "danger": "The wind tore a piece of the roof away",
            "act": "held a big cloth over the hole and tied it down with ropes",
            "after": "the wind stopped, and the roof could be mended",
        },
        {
            "danger": "A tree fell across the road, and nobody could get through",
            "act": "cut the branches and rolled the tree aside",
            "after": "the sun came out, and the road was free",
        },
        {
            "danger": "All the lamps went out, and it was as dark as in a cave",
            "act": "put a candle in every window, so that everyone could find the way home",
            "after": "the last neighbour came in, wet but safe",
        },
        {
            "danger": "The little boats were pulled out to sea",
            "act": "threw long ropes and pulled the boats back one by one",
            "after": "all the boats lay in the harbour again",
        },
    ),
    beats=(
        must(
            '{time}, the sky turned black. {h} was {spot}. "There is a storm coming," said {fintro}.',
            "{time}, the birds stopped singing. {h} looked up and saw dark clouds. Soon it began to rain very hard.",
        ),
        must("{danger}. {h} was {sad}.", "Then it got worse. {danger}."),
        may(
            '"Let us run away," said {f}. "No," said {h}. "{g} is still here. We have to help."',
            "At first everybody ran here and there, and nobody knew what to do.",
            "{h} thought of {his} {t}, but there were more important things now.",
        ),
        must(
            "{h} called everyone together. {h} and {f} {act}.",
            '"We can do it if we all help," said {h}. So {h} and {f} {act}.',
        ),
        may(
            "It took many hours. Their arms hurt, but they did not stop.",
            "{g} brought {food}, and that gave them new strength.",
        ),
        must("In the morning {after}.", "At last {after}."),
        must(
            "They all sat down together and ate {food}. {h} was tired and felt {glad}.",
            '"You saved us," said {g}. "We all did it together," said {h}, and {he} felt {glad}.',
        ),
    ),
    questions=(
        ("What happened in the storm?", "{danger}."),
        ("What did {h} and {f} do?", "{h} and {f} {act}."),
        ("How did the story end?", "At the end {after}."),
    ),
)

GARDEN = Plot(
    name="garden",
    clause="planted a seed and had to wait",
    outcome="the seed grew into {plant}",
    theme="patience",
    lesson="[Good things need time|You cannot hurry a seed]",
    titles=("The Little Seed", "{Hn} Waits", "Something in the Ground"),
    variants=(
        {
            "plant": "a tall sunflower",
            "harm": "a hungry snail came",
            "guard": "put a ring of sand around the little plant",
            "use": "gave the seeds to the birds in winter",
        },
        {
            "plant": "a big pumpkin",
            "harm": "it did not rain for {number} weeks",
            "guard": "carried water from the well every evening",
            "use": "cooked soup for the whole street",
        },
        {
            "plant": "an apple tree",
            "harm": "a cold night came",
            "guard": "wrapped the little tree in an old blanket",
            "use": "gave an apple to everyone who passed by",
        },
        {
            "plant": "a bean plant as high as the roof",
            "harm": "the wind bent it",
            "guard": "tied it to a strong stick",
            "use": "ate beans all summer and had some left for {g}",
        },
        {
            "plant": "a red rose",
            "harm": "weeds grew all around it",
            "guard": "pulled out the weeds one by one",
            "use": "gave the first flower to {g}",
        },
    ),
    beats=(
        must(
            '{time}, {g} gave {h} a seed. "Plant it and take care of it," said {g}.',
            "{time}, {h} found a seed {spot}. {he} did not know what kind of seed it was.",
        ),
        must(
            "{h} put it in the ground {outside} and gave it water. Then {he} sat down to wait.",
            "{h} dug a small hole {outside}, put the seed in and covered it with earth.",
        ),
        must(
            "The next day nothing was there. The day after that, nothing was there, either. {h} was {sad}.",
            '"Why does it not grow?" {h} asked every morning. "Be patient," said {f}.',
        ),
        may(
            '{h} wanted to dig it up and look. "If you do that, it will die," said {f}. So {h} left it alone.',
            "{h} sang to it. {h} told it stories. {fintro} laughed, but {h} did not mind.",
        ),
        must(
            "After {number} weeks there was a tiny green leaf! But then {harm}.",
            "One morning {h} saw something green. {he} danced for joy. But soon {harm}.",
        ),
        must(
            "So {h} {guard}. The little plant was saved, and it grew and grew.",
            "{h} did not give up. {he} {guard}, and the plant lived.",
        ),
        must(
            "By the end of summer it was {plant}. {h} {use} and felt {glad}.",
            "It became {plant}, and everybody came to look at it. {h} {use}.",
        ),
    ),
    questions=(
        ("What did the seed become?", "The seed became {plant}."),
        ("What was the danger for the plant?", "The danger was that {harm}."),
        ("What did {h} do to save the plant?", "{h} {guard}."),
        ("Where did {h} plant the seed?", "{h} planted the seed {outside}."),
    ),
)

SHOP = Plot(
    name="shop",
    clause="opened a little shop that nobody visited",
    outcome="people came because {h} {trick}",
    theme="a new idea",
    lesson="[A good idea can change everything|Do a thing with love, and others will see it]",
    titles=("The Empty Shop", "{Hn}'s Little Shop", "A Good Idea"),
    variants=(
        {
            "goods": "{food}",
            "trick": "gave everyone a small taste for free",
            "reason": "nobody knew how good it was",
            "idea_from": "One bite, and they will come back",
        },
        {
            "goods": "warm hats",
            "trick": "put a hat on the statue in the square",
            "reason": "nobody could see the shop from the road",
            "idea_from": "Show them where everyone can see it",
        },
        {
            "goods": "old books",
            "trick": "read a story aloud in front of the door every evening",
            "reason": "everyone walked past too quickly",
            "idea_from": "If you read to them, they will stop and listen",
        },
        {
            "goods": "toys",
            "trick": "mended broken toys for nothing",
            "reason": "people said they had enough toys",
            "idea_from": "Be useful to them first",
        },
        {
            "goods": "flowers",
            "trick": "planted flowers along the whole street",
            "reason": "the street was so grey that nobody walked there",
            "idea_from": "Make the street beautiful, and they will come",
        },
    ),
    beats=(
        must(
            "{time}, {h} opened a little shop and sold {goods} there.",
            "{h} had always wanted to have a shop. {time}, {he} opened one. It sold {goods}.",
        ),
        must(
            "The first day nobody came. The second day nobody came, either, because {reason}.",
            "{h} waited all day behind the counter. Nobody came in, because {reason}. {h} felt {sad}.",
        ),
        may(
            "{h} counted the coins in the box. There were only {number}.",
            '"You should close it," said a neighbour. "I will try one more week," said {h}.',
            "It was {weather}, and the little bell on the door did not ring once.",
        ),
        must(
            'Then {fintro} came in to get out of the rain. {h} told {fhim} everything. "{idea_from}," said {f}.',
            '"What should I do?" {h} asked {f}. {f} thought about it. "{idea_from}," said {f}.',
        ),
        must(
            "So the next day {h} {trick}. People stopped, and they began to talk about it.",
            "{h} {trick}. First one came, then two, then five.",
        ),
        must(
            "Soon the bell on the door rang all day. {h} felt {glad} and gave {f} {goods} to say thank you.",
            "After {number} weeks there was a long line in front of the shop, and {h} felt {glad}.",
        ),
    ),
    questions=(
        ("What did {h} sell?", "{h} sold {goods}."),
        ("Why did nobody come at first?", "Nobody came because {reason}."),
        ("What did {h} do?", "{h} {trick}."),
        ("Who gave {h} the idea?", "{f} gave {h} the idea."),
    ),
)

HURRY = Plot(
    name="hurry",
    clause="was always in a hurry",
    outcome="{h} learned to slow down",
    theme="taking your time",
    lesson="[Slow and careful is often faster|If you rush, you may have to do it twice]",
    titles=("Too Fast, {Hn}!", "{Hn} in a Hurry", "Slow Down"),
    variants=(
        {
            "job": "make {food} for the party",
            "slip": "took the salt and thought it was sugar",
            "result": "nobody could eat it",
        },
        {
            "job": "paint the fence",
            "slip": "did not let the first coat dry",
            "result": "the paint ran down in long drops",
        },
        {
            "job": "build a house of wood for the birds",
            "slip": "forgot to measure the boards",
            "result": "one side was too long and the roof fell off",
        },
        {
            "job": "pack a bag for the journey",
            "slip": "packed without looking",
            "result": "there were three spoons in it, and no shoes",
        },
        {"job": "write a letter to {g}", "slip": "did not read it again", "result": 'it said "Dear Goat" at the top'},
    ),
    beats=(
        must(
            "{h} was always in a hurry. {he} ate fast, walked fast and talked fast.",
            '"Quick, quick!" That was what {h} said all day long.',
        ),
        must(
            '{time}, {g} asked {him} to {job}. "I will be done in a minute," said {h}.',
            "{time}, {h} had to {job}. {he} started at once and did not stop to think.",
        ),
        must("{he} was so fast that {he} {slip}. In the end {result}.", "But {he} {slip}. When it was done, {result}."),
        may(
            "{h} felt {sad}. All that work was for nothing.",
            "A {junk_animal} laughed. {h} did not.",
            '"What went wrong?" {h} asked.',
        ),
        must(
            '"Let us do it again together," said {fintro}. "But slowly this time. One thing after the other."',
            '{f} came to help. "I never hurry," said {f}, "and I only have to do things once."',
        ),
        must(
            "They worked slowly and looked at every step. It took an hour, and it was just right.",
            "So they began again. It took longer, but this time everything was right.",
        ),
        must(
            '"Slow can be fast," said {h}, and {he} felt {glad}.',
            "From then on, when {h} wanted to hurry, {he} thought of that day and took a deep breath.",
        ),
    ),
    questions=(
        ("What did {h} have to do?", "{h} had to {job}."),
        ("What went wrong?", "{h} {slip}, and {result}."),
        ("Who helped {h}?", "{f} helped {h}."),
    ),
)

PLOTS = (ERRAND, STRAY, STORM, GARDEN, SHOP, HURRY)
