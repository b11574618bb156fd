# ruff: noqa: E501  (sentences and word lists are easier to read unbroken)
"""Plots about a thing that is lost, broken, wanted, made or found."""

from tools.demo_model.data.plots import Plot, may, must

LOST = Plot(
    name="lost",
    clause="lost {his} {t}",
    outcome="{f} helped {him} look, and they found the {t} {spot3}",
    theme="losing something",
    lesson="[It is easier to find things when a friend helps you look|If you lose something, think of where you have been]",
    titles=("The Lost {T}", "{Hn} and the {T}", "Where Is the {T}?", "The {T} That Went Away"),
    variants=(
        {
            "cause": "{he} had stopped {spot3} to [rest|look at a butterfly|eat {food}|talk to a neighbour], and {he} had left the {t} there",
            "clue": '"Where did you stop today?" asked {f}. {h} thought hard. "I stopped {spot3}," {he} said',
        },
        {
            "cause": "a strong wind had come up and blown the {t} away",
            "clue": '{f} held up a leaf and let it go. "Look, the wind blows that way," said {f}. "Let us follow it." They followed the leaf until they came to a place {spot3}',
            "t_pool": "hat, scarf, kite, letter, ribbon, feather, map, ticket, balloon, cap, paper star, paper plane, card, stamp, flag, photograph",
        },
        {
            "cause": "a magpie that loved shiny things had taken it",
            "clue": '{f} looked up and saw a magpie with something bright. "That bird likes shiny things," said {f}. They followed the magpie, and it landed {spot3}',
            "t_pool": "ring, key, bell, coin, button, spoon, necklace, bracelet, soup spoon, iron key, medal, badge, whistle, lucky coin, pearl, thimble",
        },
        {
            "cause": "{he} had a hole in {his} pocket, and the {t} had fallen out on the way",
            "clue": '{f} saw the hole in the pocket. "It must have fallen out," said {f}. They walked back the way {h} had come and looked at the ground. Soon they came to a place {spot3}',
            "t_pool": "key, coin, ring, button, marble, shell, stone, whistle, pencil, ticket, acorn, walnut, seed, glass bead, lucky coin, stamp, dice",
        },
        {
            "cause": "a puppy had carried it off to play with",
            "clue": '{f} saw small paw marks on the ground. "Those are the marks of a puppy," said {f}. They followed the marks, and the marks ended {spot3}',
            "t_pool": "shoe, sock, glove, mitten, hat, ball, scarf, towel, teddy bear, doll, rope, cap, boot, rubber duck",
        },
        {
            "cause": "{he} had hidden it so well that {he} could not remember where",
            "clue": '"If I wanted to hide something," said {f}, "I would hide it {spot3}." {h} jumped up. Now {he} remembered',
        },
    ),
    beats=(
        must(
            "{h} had a {tt} and loved it [very much|more than anything]. {time}, {h} reached for the {t}, but it was gone.",
            "The thing {h} liked best was a {tt}. {time}, {he} looked for the {t} and could not find it.",
            "{time}, {h} wanted to show {his} {tt} to {f}. But the {t} was not there!",
            "{g} had given {him} a {tt}. {h} took it everywhere. Then, {time}, the {t} was gone.",
        ),
        must(
            '"Oh no! Where is my {t}?" cried {h}. {he} did not know that {cause}.',
            "{h} felt {sad}. {he} could not know it, but {cause}.",
            '"My {t} is lost," said {h}, and {he} felt {sad}. The truth was that {cause}.',
        ),
        may(
            "{he} looked {spot}, but the {t} was not there. {he} looked {spot2}, but it was not there either.",
            "First {h} looked {spot}. There was only {junk}. Then {he} looked {spot2}. There was nothing at all.",
            "{h} searched {spot} and {spot2}. {he} found {junk}, but no {t}.",
            "{h} asked everyone {he} met, but nobody had seen the {t}. {he} looked {spot}, too, and found only {junk}.",
        ),
        must(
            "Then {fintro} came by and asked what was wrong. {clue}.",
            'Then {h} met {fintro}. "Do not worry. I will help you," said {f}. {clue}.',
            '{fintro} heard {him} and came to help. "Two can look better than one," said {f}. {clue}.',
        ),
        must(
            'And there it was! The {tt} lay {spot3}. "[We found it|Here it is|My {t}]!" {h} called.',
            "They looked carefully, and there, {spot3}, was the {tt}. {h} [laughed|jumped|danced] for joy.",
            "{f} saw it first. The {t} was {spot3}, [a little dirty but not broken|just as it had been|safe and sound].",
        ),
        must(
            '"Thank you, {fn}," said {h}. From that day on, {h} always knew where {his} {t} was.',
            "{h} thanked {f} and held the {t} tight. On the way home {he} felt {glad}.",
            '"You are a good friend," said {h}. {he} shared {food} with {f}, and the {t} [was never lost again|stayed by {his} side].',
            "That night the {t} was back in its place, and {h} fell asleep feeling {glad}.",
        ),
    ),
    questions=(
        ("What did {h} lose?", "{h} lost {his} {t}."),
        ("Where was the {t}?", "The {t} was {spot3}."),
        ("Who helped {h}?", "{f} helped {h} look for the {t}."),
        ("What was lost in the story?", "A {tt} was lost."),
    ),
)

# Things that can crack.
_BREAKABLE = (
    "cup, bowl, plate, vase, teapot, jar, clock, mirror, lamp, jug, mug, snow globe, flower pot, music box, globe"
)

BROKEN = Plot(
    name="broken",
    clause="broke {t_owner} {t} and told the truth",
    outcome="{h} told {g} the truth, and they mended the {t} together",
    theme="telling the truth",
    lesson="[Telling the truth can be hard, but it makes the heart light|A mistake is easier to carry when you tell somebody]",
    titles=("The Broken {T}", "{Hn} Tells the Truth", "A Crack in the {T}"),
    variants=(
        {
            "t_owner": "{g}'s",
            "t_pool": _BREAKABLE,
            "how": "running [through the room|in the house]",
            "hit": "bumped into the table, and the {t} fell to the floor",
        },
        {
            "t_owner": "{g}'s",
            "t_pool": _BREAKABLE,
            "how": "throwing a ball inside",
            "hit": "missed the ball, and it hit the {t}",
        },
        {
            "t_owner": "{g}'s",
            "t_pool": _BREAKABLE,
            "how": "trying to reach the top shelf",
            "hit": "pulled too hard, and the {t} came down with a crash",
        },
        {
            "t_owner": "{g}'s",
            "t_pool": _BREAKABLE,
            "how": "dancing with a broom",
            "hit": "turned around too fast, and the broom knocked the {t} over",
        },
    ),
    beats=(
        must(
            "{g} had an old {t}. It had belonged to {ghis} mother, and {ghe} looked at it every day.",
            "In the house of {g} stood a {tt}. {g} had told {h} to be careful with it.",
            "{g} was very fond of a {tt}. It was [old|rare|a gift from a friend].",
        ),
        must(
            "{time}, {h} was {how}. {he} {hit}. Crack! Now the {t} was broken.",
            "{time}, when nobody was looking, {h} was {how}. {he} {hit}. It broke.",
        ),
        must(
            "{h} was [scared|frightened|afraid]. {he} put the pieces in a box and hid the box {spot}.",
            "{h} did not know what to do, so {he} hid the pieces {spot} and said nothing.",
            '"Nobody must know," {h} thought, and {he} hid the broken {t} {spot}.',
        ),
        may(
            "At dinner {h} could not eat {his} {food}. {his} stomach hurt, because {he} had a secret.",
            "That night {h} could not sleep. Every time {he} closed {his} eyes, {he} saw the {t}.",
            '"Is something wrong?" asked {g}. "No," said {h}, but {his} face was red.',
            '{h} told {f} about it. "You should tell {g}," said {f}. "It will feel better than hiding."',
        ),
        must(
            'In the morning, {h} went to {g}. "I broke your {t}," {he} said. "I was {how}. I am sorry."',
            '{h} took a deep breath and brought the box to {g}. "It was me," {he} said. "I broke the {t}, and I am very sorry."',
        ),
        must(
            '{g} was [quiet|sad] for a moment. Then {ghe} said, "Thank you for telling me. The truth is worth more than a {t}."',
            '"I am sad about the {t}," said {g}, "but I am glad that you told me the truth."',
        ),
        must(
            "They got some glue and put the pieces together. There was a line where it had cracked, but {g} liked the {t} even more.",
            "They mended the {t} at the kitchen table. It took all afternoon, and when it was done, {h} felt {glad}.",
            "Together they fixed the {t}. After that, {h} was careful, and {he} never hid a mistake again.",
        ),
    ),
    questions=(
        ("What did {h} break?", "{h} broke the {t} of {g}."),
        ("Where did {h} hide the pieces?", "{h} hid the pieces {spot}."),
        ("Did {h} tell the truth?", "Yes. {h} told {g} the truth and said sorry."),
        ("How did the {t} break?", "{h} was {how}, and {he} {hit}."),
    ),
)
GIFT = Plot(
    name="gift",
    clause="made a present for {g}",
    outcome="{g} loved the present because it was made by hand",
    theme="making a present",
    lesson="[A gift made with love is worth more than gold|You do not need money to give something good]",
    titles=("A Gift for {G}", "The Handmade {T}", "{Hn} Makes a Present", "The Best Present"),
    variants=(
        {
            "t_pool": "kite, basket, paper boat, wooden box, lamp, cushion, puppet, wind chime, doll, toy boat, wooden spoon",
            "made": "some wood, some string and a bit of paint",
        },
        {
            "t_pool": "cake, pie, loaf of bread, jar of honey, pot of jam, cookie, sandwich, pancake",
            "made": "flour, butter and the sweet things {he} had in the kitchen",
        },
        {
            "t_pool": "scarf, blanket, mitten, sweater, cap, quilt, rug, cushion, sock",
            "made": "soft wool and a good deal of time",
        },
        {
            "t_pool": "painting, card, letter, songbook, story book, map, calendar, paper star",
            "made": "paper, a pencil and five colours",
        },
    ),
    beats=(
        must(
            "It was [almost|nearly] the birthday of {g}. {h} wanted to give {ghim} something, but {he} had no money.",
            "{time}, {h} heard that {g} had a birthday the next day. {h} counted {his} coins. There were only {number}, and that was not enough.",
            "{h} saw a fine {t} in a shop window. It would be just right for {g}. But it cost far too much.",
        ),
        must(
            '"What can I do?" {h} asked {f}. "You could make something," said {f}. "I will help you."',
            '{h} told {f} about it. "If you cannot buy a {t}, why not make one?" said {f}.',
            '{h} sat {spot} and thought. Then {he} had an idea. "I will make a {t} myself!"',
        ),
        must(
            "{h} took {made} and began to work.",
            "All day {h} worked with {made}.",
            "{h} looked for {made}, sat down {spot}, and started.",
        ),
        may(
            "The first try went wrong, so {he} started again. The second try was better.",
            "It was not easy. Twice {h} wanted to stop. But {he} thought of {g} and went on.",
            "Once {he} made a mistake, and {f} showed {him} how to fix it.",
        ),
        must(
            "At last the {t} was ready. It was a little crooked, but {h} was proud of it.",
            "In the evening it was done. It was not a perfect {t}, but it was a good one.",
        ),
        must(
            'The next day {h} gave it to {g}. "You made this {t} for me?" said {g}. "Then it is the best present of all."',
            '{g} opened the parcel slowly. When {ghe} saw the {t}, {ghe} smiled. "Nobody else in the world has one like it," {ghe} said.',
        ),
        must(
            "{h} felt {glad}, and {g} kept the {t} [for many years|where everyone could see it|close to {ghim}].",
            "They ate {food} together, and {h} felt {glad}.",
        ),
    ),
    questions=(
        ("What did {h} make?", "{h} made a {t}."),
        ("Who was the present for?", "The present was for {g}."),
        ("Why did {h} not buy a present?", "{h} did not have enough money."),
        ("Did {g} like the present?", "Yes. {g} liked the {t} because {h} had made it."),
    ),
)

SHARE = Plot(
    name="share",
    clause="did not want to share {his} {t}",
    outcome="{h} shared the {t} with {f}, and it was more fun for both",
    theme="sharing",
    lesson="[Things are better when you share them|A thing you share gives you a friend as well]",
    titles=("{Hn} Learns to Share", "My {T}!", "One {T} for Two"),
    variants=(
        {
            "t_pool": "ball, kite, sled, bicycle, toy train, scooter, drum, boat, jump rope, puzzle, spinning top, skateboard, rocking horse, toy boat",
            "use": "played with the {t}",
            "alone": "But playing alone was boring. The {t} did not laugh, and it did not talk",
            "need": "The {t} got stuck, and {h} could not get it free alone",
            "together": "They took turns with the {t} until the sun went down",
        },
        {
            "t_pool": "cake, pie, melon, loaf of bread, pumpkin, jar of honey, bag of nuts, pot of jam, coconut",
            "use": "sat down to eat the {t}",
            "alone": "But the {t} was very big. After a while {h} was full, and {his} stomach hurt",
            "need": "There was so much left, and it would soon go bad",
            "together": "They cut the rest in two and ate it together, and it tasted better than before",
        },
        {
            "t_pool": "umbrella, blanket, tent, lantern, raft, boat",
            "use": "kept the {t} all to {himself}",
            "alone": "Outside it began to rain, and {h} saw {f}, wet and cold",
            "need": "{h} had room for two, and {he} knew it",
            "together": "Side by side they waited until the rain was over, and they told each other jokes",
        },
    ),
    beats=(
        must(
            "{h} had a {tt}. It was the only {t} for miles around.",
            "{time}, {h} got a new {t}. It was {tt_adj}, and {he} was very proud of it.",
        ),
        must(
            '{fintro} came by. "What a fine {t}! May I try it?" {fhe} asked. "No," said {h}. "It is mine."',
            '"Will you share your {t} with me?" asked {fintro}. {h} shook {his} head. "It is mine, only mine."',
        ),
        must(
            "{f} went away and felt {sad}. {h} {use}.",
            "So {f} walked off with {fhis} head down, and {h} {use}.",
        ),
        must("{alone}. {need}.", "{alone}. What now? {need}."),
        may(
            "{h} thought of the face {f} had made. It had been a sad face.",
            '"I was not kind to {fn}," {h} said to {himself}.',
        ),
        must(
            '{h} ran after {f}. "I am sorry," {he} said. "Please come and share the {t} with me." {f} smiled.',
            'So {h} went to find {f}. "The {t} is for both of us now," said {h}.',
        ),
        must("{together}. {h} felt {glad}.", "{together}. After that, {h} and {f} shared everything."),
    ),
    questions=(
        ("What did {h} not want to share?", "{h} did not want to share {his} {t}."),
        ("Who asked {h} to share?", "{f} asked {h} to share the {t}."),
        ("What did {h} say at the end?", "{h} said sorry and shared the {t} with {f}."),
    ),
)

TREASURE = Plot(
    name="treasure",
    things="book, box, suitcase, clock, coat, hat, jar, vase, lamp, teapot, boot, drum, cushion, bottle, umbrella",
    clause="found an old map",
    outcome="the treasure was {real}, and {h} and {f} were glad of it",
    theme="a treasure",
    lesson="[Not every treasure is made of gold|The best part of a treasure is finding it with a friend]",
    titles=("The Old Map", "{Hn} and the Treasure", "The Secret of the {T}", "What the Map Showed"),
    variants=(
        {
            "real": "a bag of seeds",
            "why": "They planted the seeds, and in spring the whole hill was full of flowers",
            "note": "Put us in the ground and wait",
        },
        {
            "real": "a box of old letters",
            "why": "The letters told of two friends who had lived there long ago and had played the same games",
            "note": "For the ones who come after us",
        },
        {
            "real": "a little bell",
            "why": "When they rang the bell, all the neighbours came to see what it was, and so they had a party",
            "note": "Ring me when you are lonely",
        },
        {
            "real": "a book of recipes",
            "why": "They cooked the first recipe that evening, and the whole street could smell {food}",
            "note": "The best things are made to be shared",
        },
        {
            "real": "a clear spring of water",
            "why": "It had been a dry year, and now everyone had enough to drink",
            "note": "This is worth more than gold",
        },
    ),
    beats=(
        must(
            "{time}, {h} found a map inside an old {t}. There was a red cross on it.",
            "{h} was cleaning an old {t} when a piece of paper fell out. It was a map with a cross on it.",
        ),
        must(
            '"A treasure!" said {f} when {h} showed {fhim} the map. "Let us go and find it."',
            '{h} ran to {fintro}. "Look at this map," said {h}. "Will you come with me?" "Of course," said {f}.',
        ),
        must(
            "The map led them first to a place {spot}, and then to an old tower.",
            "They followed the map. It showed a path {spot}, and after that a big stone near an old tower.",
        ),
        may(
            "Once they took the wrong path and had to go back. {h} read the map again, more slowly this time.",
            "It was {weather}, and they got tired. They sat down, shared some {food} and went on.",
            "A bridge was broken on the way, so they crossed the water on flat stones, hand in hand.",
        ),
        must(
            "The cross was {outside}. They dug and dug until they hit something hard.",
            "At last they stood {outside}. Here was the cross. They began to dig.",
        ),
        must(
            'There was no gold. It was {real}. Beside it lay a note. It said: "{note}."',
            'They had hoped for gold, but they found {real}, and a note with the words "{note}."',
        ),
        must(
            "{why}. {h} felt {glad}.",
            'At first {h} was {sad}. But then {he} understood. {why}. "This is a real treasure," said {f}.',
        ),
    ),
    questions=(
        ("Where was the map?", "The map was in an old {t}."),
        ("What was the treasure?", "The treasure was {real}."),
        ("What did the note say?", 'The note said: "{note}."'),
        ("Who went with {h}?", "{f} went with {h}."),
        ("Where did they dig?", "They dug {outside}."),
    ),
)

REPAIR = Plot(
    name="repair",
    clause="wanted to repair an old {t}",
    outcome="{h} repaired the {t} with {missing} from {f}",
    theme="repairing something old",
    lesson="[Old things can be good again if you take care of them|With patience, many broken things can be mended]",
    titles=("The Old {T}", "{Hn} Repairs a {T}", "As Good as New"),
    variants=(
        {
            "t_pool": "clock, watch, music box, radio, toy train, toy car, spinning top",
            "missing": "a tiny spring",
            "now": "it went tick and turned again",
        },
        {"t_pool": "boat, raft, toy boat", "missing": "a good piece of rope", "now": "it floated on the water again"},
        {
            "t_pool": "bicycle, cart, wagon, scooter, sled",
            "missing": "a round wheel",
            "now": "it rolled down the lane again",
        },
        {
            "t_pool": "violin, guitar, flute, drum, trumpet, bell",
            "missing": "a little glue",
            "now": "it made a clear, warm sound again",
        },
        {
            "t_pool": "lamp, lantern, camera, telescope, mirror",
            "missing": "a piece of clean glass",
            "now": "it shone in the evening light again",
        },
        {
            "t_pool": "chair, stool, rocking horse, ladder, wooden box, dollhouse",
            "missing": "a strong nail",
            "now": "it stood on the floor without shaking",
        },
    ),
    beats=(
        must(
            "{time}, {h} found an old {t} {spot}. It was dirty and broken, and nobody wanted it.",
            '{g} was about to throw away an old {t}. "Please give it to me," said {h}. "I want to repair it."',
        ),
        must(
            "{h} cleaned it with a cloth. Then {he} looked at every part. One thing was missing: {missing}.",
            "{h} took it home and worked on it for {number} days. But it still did not work, because it needed {missing}.",
        ),
        may(
            "{he} looked for it {spot2}, but there was none. {he} asked at the shop, but the shop was closed.",
            '"You will never fix that," said a neighbour. {h} did not listen.',
            "{he} tried to do without it. That did not work at all.",
        ),
        must(
            'Then {fintro} came to visit. "I have {missing} at home," said {f}. "You may have it."',
            '{h} told {f} about the problem. {f} looked in {fhis} bag. "Is this what you need?" asked {f}. It was {missing}.',
        ),
        must(
            "{h} put it in its place, very carefully. {f} held {fhis} breath. And then {now}!",
            "They worked side by side until it was dark. At last {now}.",
        ),
        must(
            "{h} was {glad}. Everyone who saw the {t} thought it was new.",
            '"It only needed somebody to care for it," said {h}. {he} gave the old {t} a place of honour.',
            'When {g} saw it, {ghe} could not believe it. "Is this my old {t}?" asked {g}. "It is," said {h}, and {he} felt {glad}.',
        ),
    ),
    questions=(
        ("What did {h} repair?", "{h} repaired an old {t}."),
        ("What was missing?", "What was missing was {missing}."),
        ("Who had {missing}?", "{f} had {missing}."),
    ),
)

WISH = Plot(
    name="wish",
    things="lamp, ring, bottle, shell, stone, coin, key, feather, bell, mirror, whistle, button, lantern, acorn",
    clause="got one wish from a magic {t}",
    outcome="{h} used the wish to help {g}",
    theme="a wish",
    lesson="[A wish for somebody else can make you happy too|Think before you wish]",
    titles=("One Wish", "The Magic {T}", "{Hn} and the Wish"),
    variants=(
        {"trouble": "was ill and had to stay in bed", "help": "{g} got up, stretched, and was well again"},
        {
            "trouble": "had lost {ghis} house in a storm",
            "help": "a small new house stood there with smoke coming out of the chimney",
        },
        {"trouble": "could not see well any more", "help": "{g} blinked and could see every leaf on the trees"},
        {"trouble": "had no food left for the winter", "help": "the shelves of {g} were full of {food}"},
        {
            "trouble": "was all alone and had nobody to talk to",
            "help": "the friends {g} had not seen for years stood at the door",
        },
    ),
    beats=(
        must(
            '{time}, {h} found a {tt} {spot}. When {he} touched it, a voice said, "You have one wish."',
            '{h} was walking home when {he} saw a {tt} {spot}. It was shining. "Rub me," it whispered, "and you may have one wish."',
        ),
        must(
            "{h} thought about it. {he} could wish for {food}, or for a palace, or for a mountain of gold.",
            '"I could be rich," thought {h}. "I could be famous. I could fly." {he} did not know what to choose.',
        ),
        may(
            '"Wish for gold!" said {f}. "Or wish for a hundred more wishes!" But {h} was not sure.',
            "{he} put the {t} in a bag and walked home slowly, thinking all the way.",
        ),
        must(
            "On the way {h} passed the house of {g}. {g} {trouble}. {h} felt sorry for {ghim}.",
            "Then {h} heard that {g} {trouble}. That was not fair, {he} thought.",
        ),
        must(
            '"I know my wish now," said {h}. "I wish that {g} gets help." The {t} glowed, and {help}.',
            "{h} held the {t} and said {his} wish for {g}. There was a flash, and {help}.",
        ),
        must(
            "After that, the {t} was only a {t}. But {h} was {glad}, and {he} was never sorry about {his} wish.",
            '"You used your wish for me?" asked {g}. "It was a good wish," said {h}, and {he} felt {glad}.',
        ),
    ),
    questions=(
        ("What was magic in the story?", "The {t} was magic."),
        ("How many wishes did {h} get?", "{h} got one wish."),
        ("What did {h} wish for?", "{h} wished that {g} would get help."),
    ),
)

TRADE = Plot(
    name="trade",
    clause="traded a {t} for something better again and again",
    outcome="{h} ended with {last}, and that was what {he} had wanted most",
    theme="trading",
    lesson="What is small for one can be big for another",
    titles=("The Long Trade", "From a {T} to {Last_title}"),
    variants=(
        {
            "last": "a warm coat",
            "last_title": "a Coat",
            "first_swap": "a basket of eggs",
            "second_swap": "a bag of wool",
        },
        {"last": "a boat", "last_title": "a Boat", "first_swap": "a fishing net", "second_swap": "two barrels of salt"},
        {
            "last": "a pony",
            "last_title": "a Pony",
            "first_swap": "a sack of oats",
            "second_swap": "a cart with one wheel",
        },
    ),
    beats=(
        must("{h} wanted {last}, but all {he} had was a {tt}."),
        must("{time}, {h} met {fintro}, who needed a {t}. {f} gave {him} {first_swap} for it."),
        must(
            'Next {h} met {g}. {g} looked at {first_swap} and said, "I will give you {second_swap} for that." {h} agreed.'
        ),
        must('At the market a trader needed {second_swap} in a hurry. "I will give you {last}!" said the trader.'),
        must("So {h} came home with {last} and felt {glad}. It had all begun with one {t}."),
    ),
    questions=(
        ("What did {h} have at first?", "At first {h} had a {t}."),
        ("What did {f} give {h}?", "{f} gave {h} {first_swap}."),
        ("What did {h} have at the end?", "At the end {h} had {last}."),
    ),
    heldout=True,
)

PLOTS = (LOST, BROKEN, GIFT, SHARE, TREASURE, REPAIR, WISH, TRADE)
