# ruff: noqa: E501  (sentences and word lists are easier to read unbroken)
"""Plots about a mystery, a visitor, or a surprise; and those under water."""

from tools.demo_model.data.plots import Plot, may, must

THIEF = Plot(
    name="thief",
    clause="wondered who was taking the {food}",
    outcome="the thief was only {culprit}, and {h} shared the {food}",
    theme="a mystery",
    lesson="[Ask why before you get angry|Somebody who takes may be somebody in need]",
    titles=("Who Took the {Food_title}?", "The Hungry Visitor", "{Hn} Solves a Mystery"),
    variants=(
        {
            "culprit": "a thin little cat",
            "mark": "a grey hair on the window sill",
            "why": "There were three hungry kittens at home",
        },
        {
            "culprit": "a family of mice",
            "mark": "tiny crumbs that led to a hole in the wall",
            "why": "The winter was long, and they had nothing left",
        },
        {
            "culprit": "an old raccoon",
            "mark": "the print of a small hand in the flour",
            "why": "The raccoon was too old to climb trees",
        },
        {
            "culprit": "a young crow",
            "mark": "one black feather",
            "why": "The crow had a hurt wing and could not fly far",
        },
        {
            "culprit": "a boy from the next street",
            "mark": "the print of a small shoe",
            "why": "The mother of the boy was ill, and there was no dinner at home",
        },
    ),
    beats=(
        must(
            "Every evening {h} put the {food} on the shelf, and every morning some of it was gone.",
            "Something strange was going on. {time}, {h} saw that half of the {food} was gone. The next day it happened again.",
        ),
        must(
            '"Was it you?" {h} asked {fintro}. "No," said {f}, "but I will help you to find out."',
            '"There is a thief," said {h}. {f} wanted to see for {fhimself}, and the two made a plan.',
        ),
        may("They looked {spot} and {spot2}, but found only {junk}.", "They asked {g}. {g} knew nothing about it."),
        must("Then {f} found a clue: {mark}.", "But near the shelf {h} saw something: {mark}."),
        must(
            "That night they hid behind a curtain and waited. At midnight there was a small noise. It was {culprit}!",
            "They stayed awake and kept very quiet. Then they saw the thief. It was {culprit}.",
        ),
        must(
            '"Why do you take our {food}?" asked {h}. Then {h} saw the reason. {why}. {h} was not angry any more.',
            "{h} wanted to shout. But then {he} understood. {why}.",
        ),
        must(
            "From then on {h} put a plate of {food} outside every evening. Nothing was ever stolen again, and {h} felt {glad}.",
            '"You only have to ask," said {h}, and {he} gave half of the {food} away. {he} felt {glad}.',
        ),
    ),
    questions=(
        ("Who was the thief?", "The thief was {culprit}."),
        ("What was the clue?", "The clue was {mark}."),
        ("What was being taken?", "Somebody was taking the {food}."),
        ("What did {h} do at the end?", "{h} shared the {food}."),
    ),
)

NOISE = Plot(
    name="noise",
    things="broom, umbrella, wooden spoon, pillow, hammer, shoe, trumpet, pan, rope, whistle",
    clause="heard a strange noise at night",
    outcome="the noise was only {source}",
    theme="a strange noise",
    lesson="[Many things are less scary when you turn on the light|Look first, and be afraid later]",
    titles=("The Noise in the Night", "What Was That?", "{Hn} and the Strange Sound"),
    variants=(
        {
            "sound": "Tap, tap, tap",
            "source": "a branch that touched the window",
            "fix": "tied the branch back with a piece of string",
        },
        {"sound": "Whoo, whoo", "source": "the wind in an empty bottle", "fix": "put the bottle away"},
        {
            "sound": "Scratch, scratch",
            "source": "a kitten that wanted to come in",
            "fix": "let it in and gave it some milk",
        },
        {"sound": "Drip, drop, drip, drop", "source": "water that fell into a bucket", "fix": "closed the tap"},
        {
            "sound": "Bump, bump",
            "source": "an apple that rolled back and forth on the roof",
            "fix": "picked it up and ate it",
        },
        {"sound": "Grrr, grrr", "source": "{g}, who was snoring", "fix": "put a pillow under {ghis} head"},
    ),
    beats=(
        must(
            "One night {h} could not sleep. {sound}. What was that?",
            "{h} was lying in bed when {he} heard it. {sound}.",
        ),
        must(
            '"It is a monster," {he} thought, and {he} pulled the blanket over {his} head.',
            "{h} felt {sad}. {he} thought of big teeth and long arms.",
        ),
        may(
            "{sound}. There it was again, only louder.",
            "{he} counted to {number}, but it did not go away.",
            '"{fn}, are you awake?" {he} whispered. "I am now," said {f}.',
        ),
        must(
            "{h} took a {t} in one hand and a lamp in the other, and went to look with {fintro}.",
            '{fintro} had heard it, too. "Let us look together," said {f}. They took a lamp and went, step by step.',
        ),
        must(
            "They came nearer and nearer. {h} held up the lamp. It was only {source}!",
            "The noise came from a place {spot}. {h} looked, and began to laugh. It was only {source}.",
        ),
        must(
            "{h} {fix}. Then they went back to bed, and {h} slept until the sun came up.",
            '"All that fear for nothing," said {f}. {h} {fix} and felt {glad}.',
        ),
    ),
    questions=(
        ("What did {h} hear?", 'The noise was "{sound}."'),
        ("What was the noise?", "The noise was only {source}."),
        ("Who went with {h}?", "{f} went with {h}."),
        ("What did {h} do about the noise?", "{h} {fix}."),
    ),
)

PET = Plot(
    name="pet",
    clause="found a small animal in need of help",
    outcome="the {pet} got well and {end}",
    theme="taking care of an animal",
    lesson="[If you love something, you may have to let it go|To care for somebody is a big job and a big joy]",
    titles=("{Hn} and the {Pet_title}", "The Little Guest", "A Small Life"),
    variants=(
        {
            "pet": "young bird",
            "wrong": "its wing was hurt",
            "care": "made a nest in a box and fed it every hour",
            "end": "flew away, but it came back every spring",
        },
        {
            "pet": "kitten",
            "wrong": "it was wet and cold",
            "care": "dried it with a towel and gave it warm milk",
            "end": "stayed for good",
        },
        {
            "pet": "hedgehog",
            "wrong": "it was too thin for the winter",
            "care": "kept it in a warm box and gave it food and water",
            "end": "went back to the garden in spring",
        },
        {
            "pet": "puppy",
            "wrong": "it had no home",
            "care": "gave it a bowl of food and a place by the fire",
            "end": "followed {h} wherever {he} went",
        },
        {
            "pet": "turtle",
            "wrong": "it lay on its back and could not turn over",
            "care": "turned it over and carried it to the water",
            "end": "swam in a circle, as if to say thank you",
        },
        {
            "pet": "lamb",
            "wrong": "it had lost its mother",
            "care": "gave it milk from a bottle, day and night",
            "end": "found its mother again at the big meadow",
        },
    ),
    beats=(
        must(
            "{time}, {h} found a {pet} {spot}. {h} saw that {wrong}.",
            "{time}, on the way home, {h} heard a very small cry. There was a {pet} {spot}, and {wrong}.",
        ),
        must(
            '"Poor thing," said {h}. {he} carried it home under {his} coat.',
            "{h} did not think long. {he} took the {pet} home.",
        ),
        must("{h} {care}.", '"What does it need?" {h} asked {g}. {g} knew about animals. So {h} {care}.'),
        may(
            "{h} gave it a name: {petname}.",
            "At night {h} got up to see if it was all right.",
            "{f} came by every day to ask how the {pet} was.",
        ),
        may(
            "For {number} days it did not move much. {h} was {sad}.",
            "On the third day it began to eat. That was a good sign.",
        ),
        must(
            "Little by little the {pet} got well. In the end it {end}.",
            "Then one morning it was strong again. It {end}.",
        ),
        must(
            "{h} felt {glad}. {he} had helped somebody who was smaller than {himself}.",
            '"You did that well," said {g}, and {h} felt {glad}.',
        ),
    ),
    questions=(
        ("What did {h} find?", "{h} found a {pet}."),
        ("What was wrong with the {pet}?", "{H} saw that {wrong}."),
        ("What did {h} do for it?", "{h} {care}."),
        ("Where did {h} find the {pet}?", "{h} found the {pet} {spot}."),
    ),
)

ROBOT = Plot(
    name="robot",
    things="kettle, tin, pot, bucket, radio, clock, lamp, toy train, typewriter, camera, pan, bicycle",
    clause="built a little robot",
    outcome="the robot learned {learned}",
    theme="a robot",
    lesson="[Even a machine can be a friend if you are patient with it|Helping is more than doing what you are told]",
    titles=("{Hn} and the Robot", "The Tin Helper", "A Robot Called {Petname}"),
    variants=(
        {
            "order": "clean the room",
            "wrong": "threw everything out of the window, even the {t}",
            "learned": "to ask when it was not sure",
        },
        {
            "order": "water the flowers",
            "wrong": "watered the flowers, the chairs and the cat",
            "learned": "to look before it did something",
        },
        {
            "order": "make breakfast",
            "wrong": "put the {food} on the roof, because nobody had said where to put it",
            "learned": "what people like and do not like",
        },
        {"order": "guard the door", "wrong": "did not let {g} come in", "learned": "who its friends were"},
        {"order": "sing a song", "wrong": "sang so loudly that all the birds flew away", "learned": "to be gentle"},
    ),
    beats=(
        must(
            "{time}, {h} built a little robot from an old {t} and some wire, and called it {petname}.",
            '{h} had collected metal things for years. {time}, {he} put them together, and a robot opened its eyes. "I am {petname}," it said.',
        ),
        must(
            '"Please {order}," said {h}. The robot {wrong}.', "{h} asked the robot to {order}. But the robot {wrong}."
        ),
        must(
            '{h} was {sad}. "That is not what I meant!" The light in the eyes of the robot went dim.',
            '"Oh no!" cried {h}. "Did I do it wrong?" asked the robot in a small voice.',
        ),
        may(
            '"Throw it away," said a neighbour. {h} shook {his} head.',
            '{fintro} looked at the robot. "It does not know any better," said {f}. "You have to teach it."',
        ),
        must(
            "So {h} showed it everything, slowly, one step at a time. The robot listened.",
            "{h} sat down with it and explained. {number} times {he} had to explain it, and {he} did not get angry.",
        ),
        must(
            'After a while {petname} had learned {learned}. And one evening it said, "You look tired. May I help you?"',
            "Bit by bit the robot learned {learned}.",
        ),
        must(
            '"You are a good robot," said {h}. The robot did not know what to say, but its eyes shone. {h} felt {glad}.',
            "{h} and {petname} became a good team, and {h} felt {glad}.",
        ),
    ),
    questions=(
        ("What did {h} build?", "{h} built a robot called {petname}."),
        ("What was the robot asked to do?", "The robot was asked to {order}."),
        ("What did the robot do wrong?", "The robot {wrong}."),
        ("What did the robot learn?", "The robot learned {learned}."),
    ),
)

SLEEP = Plot(
    name="sleep",
    things="teddy bear, doll, blanket, pillow, rubber duck, toy boat, toy train, puppet, music box, story book",
    clause="could not fall asleep",
    outcome="{h} fell asleep at last",
    theme="going to sleep",
    lesson="[Rest is a gift, too|Tomorrow is another day]",
    titles=("{Hn} Cannot Sleep", "Good Night, {Hn}", "The Moon and {Hn}"),
    variants=(
        {
            "why": "{he} had slept all afternoon",
            "try": "counted sheep, but the sheep began to dance",
            "help": "hummed a slow song, the same four notes again and again",
        },
        {
            "why": "the next day was the day of the fair",
            "try": "drank warm milk, but {he} was still awake",
            "help": "told {him} about the sea at night, where the waves come and go",
        },
        {
            "why": "{his} head was full of thoughts",
            "try": "turned to the left and to the right",
            "help": "told {him} to give each thought a little boat and let it float away",
        },
        {
            "why": "{he} missed {his} {t}",
            "try": "held the pillow tight, but it was not the same",
            "help": "came in with the {t}, which had been in the other room all the time",
        },
        {
            "why": "the moon was so bright",
            "try": "closed the curtain, but the light came in all the same",
            "help": "explained that the moon was only a night light for all the world",
        },
    ),
    beats=(
        must(
            "It was late, and {h} could not sleep, because {why}.",
            "Everybody was asleep, only {h} was awake, because {why}.",
        ),
        must("{he} {try}.", "First {he} {try}."),
        may(
            "{he} looked out of the window. A {junk_animal} was going home. Even the wind was quiet.",
            "The clock said nine. Then it said ten.",
        ),
        must(
            '"Why are you still awake?" asked {g} softly. {g} sat down beside {him} and {help}.',
            "{g} heard {him} and came in on quiet feet. {g} {help}.",
        ),
        must(
            "{h} yawned. {his} eyes got heavy.", "Slowly, slowly, {h} grew calm. {he} yawned once, and then once more."
        ),
        must(
            '"Good night, {hn}," whispered {g}. But {h} was already asleep.',
            "And before {g} could say good night, {h} was asleep. The stars shone over the roof until morning.",
        ),
    ),
    questions=(
        ("Why could {h} not sleep?", "{h} could not sleep because {why}."),
        ("Who helped {h} to fall asleep?", "{g} helped {h} to fall asleep."),
        ("What did {h} try first?", "First {h} {try}."),
    ),
)

SURPRISE = Plot(
    name="surprise",
    things="kite, cake, scarf, hat, quilt, music box, toy boat, drum, lamp, puppet, necklace, bicycle, flag",
    clause="thought that everyone had forgotten {his} birthday",
    outcome="there was a surprise party for {h}",
    theme="a birthday",
    lesson="[Friends do not forget you|Sometimes silence is only a surprise that is not ready]",
    titles=("{Hn}'s Birthday", "The Surprise", "Nobody Forgot"),
    variants=(
        {"sign": "{f} was carrying a big box and hid it quickly", "present": "a {tt}", "where": "{spot3}"},
        {
            "sign": "{g} smelled of {food} and would not say why",
            "present": "a cake as big as a wheel",
            "where": "in the garden",
        },
        {
            "sign": "there were bits of coloured paper on the shoes of {f}",
            "present": "a {t} that they had all made together",
            "where": "in the old barn",
        },
        {
            "sign": "the door was locked, and behind it somebody was laughing",
            "present": "a song with {his} name in it",
            "where": "in the big hall",
        },
    ),
    beats=(
        must(
            "It was the birthday of {h}. {he} got up early and waited. But nobody said a word.",
            "{h} woke up with a smile, because it was {his} birthday. {he} went out to meet {f}.",
        ),
        must(
            '"Good morning, {fn}," said {h}. "Good morning," said {f}. "I am busy today." And {f} went away.',
            "{h} met {fintro} and {g}. They talked about the weather. Nobody talked about birthdays.",
        ),
        may("{h} sat {spot} and ate {food} all alone.", '"They have forgotten me," {h} thought, and {he} felt {sad}.'),
        must("There was only one strange thing: {sign}.", "But then {h} noticed something: {sign}."),
        must(
            'In the evening {f} came and said, "Come quickly! I need your help {where}." {h} ran.',
            'When it got dark, a note lay at the door. It said: "Come at once. We are {where}."',
        ),
        must(
            '"Happy birthday!" they all shouted. There were lights and music, and there was {present}.',
            "Everybody was there! They sang for {him}, and {he} got {present}.",
        ),
        must(
            '"We wanted to surprise you," said {f}. "You did," said {h}, and {he} felt {glad}.',
            "{h} laughed and cried at the same time. It was the best birthday of all.",
        ),
    ),
    questions=(
        ("What did {h} think?", "{h} thought that everyone had forgotten {his} birthday."),
        ("What did {h} get?", "{h} got {present}."),
        ("Where was the party?", "The party was {where}."),
    ),
)

REEF = Plot(
    name="reef",
    clause="found a {t} in the sea",
    outcome="{h} and {f} made {use} of the {t}",
    theme="something strange in the sea",
    lesson="[A thing is what you make of it|One can be useful in many ways]",
    titles=("A {T} in the Sea", "{Hn} and the Strange Thing", "What Fell from the Boat"),
    variants=(
        {"guess": "a boat for very small fish", "use": "a house", "who": "a young crab that had no shell"},
        {"guess": "a kind of animal that did not move", "use": "a bed", "who": "a baby seahorse that was always tired"},
        {"guess": "the hat of a whale", "use": "a school", "who": "twelve little fish that wanted to learn"},
        {"guess": "a piece of the moon", "use": "a place to hide", "who": "all the small ones when the shark came by"},
    ),
    beats=(
        must(
            "{time}, something sank slowly down from above. It was a {tt}. {h} had never seen one.",
            "{time}, {h} found a {tt} {spot}. It must have fallen from a boat.",
        ),
        must(
            '"What is it?" asked {h}. {fintro} swam around it. "I think it is {guess}," said {f}.',
            '"I know what that is," said {fintro}. "It is {guess}." {h} was not so sure.',
        ),
        may(
            "They pushed it. They knocked on it. It did nothing.",
            "They asked an old eel {spot2}, but the eel only yawned.",
        ),
        must("Then they met {who}.", "Just then they heard somebody sigh. It was {who}."),
        must(
            '{h} had an idea. "We can make {use} of it!" said {h}. And so they did.',
            '"I know!" said {f}. "Let us make {use} of it." {h} thought that was a very good idea.',
        ),
        must(
            "Nobody ever learned what a {t} was for. But in the sea it was {use}, and {h} felt {glad}.",
            "So the {t} became {use}, and {h} was proud of it.",
        ),
    ),
    questions=(
        ("What did {h} find?", "{h} found a {t}."),
        ("What did they make of the {t}?", "They made {use} of the {t}."),
        ("What did {f} think it was?", "{f} thought it was {guess}."),
    ),
    sea=True,
)

DEEP = Plot(
    name="deep",
    clause="was afraid of {fear}",
    outcome="{h} swam on for {f} and was braver than before",
    theme="being brave",
    lesson="[You can be afraid and brave at the same time|A friend makes you brave]",
    titles=("Brave {Hn}", "{Hn} in the Deep", "A Light in the Water"),
    variants=(
        {"event": "swam too close to an old net and got caught", "act": "bit through the ropes one by one"},
        {"event": "lost the way in a dark cave", "act": "swam in and called until a voice answered"},
        {"event": "was carried away by a strong current", "act": "swam after {fhim} as fast as {he} could"},
        {"event": "got stuck between two rocks", "act": "pushed a stone aside with all {his} strength"},
    ),
    beats=(
        must(
            "{h} was afraid of {fear}. So {he} always stayed close to home.",
            "All the others played far out, but {h} stayed {spot}, because {he} was afraid of {fear}.",
        ),
        must(
            '"Come and play with me!" called {fintro}. "Maybe tomorrow," said {h}.',
            "Only {fintro} stayed with {him}. They told each other stories.",
        ),
        must('{time}, {f} {event}. "Help!" cried {f}.', "But {time}, something bad happened. {f} {event}."),
        may(
            "{h} was {sad}. {he} looked for somebody who could help, but nobody was near.",
            "{h} shook from nose to tail.",
        ),
        must("There was no time to be afraid. {h} {act}.", '"I am coming!" called {h}, and {he} {act}.'),
        must(
            'Soon {f} was safe. "You came," said {f}. "I was afraid all the time," said {h}. "But you came," said {f}.',
            "{f} was free! They swam home side by side, and {h} felt {glad}.",
        ),
        must(
            "After that, {h} was still a little afraid of {fear}. But {he} did not stay at home any more.",
            "{h} felt {glad}. The sea was big, but {h} did not feel so small now.",
        ),
    ),
    questions=(
        ("What was {h} afraid of?", "{h} was afraid of {fear}."),
        ("What happened to {f}?", "{f} {event}."),
        ("What did {h} do?", "{h} {act}."),
    ),
    sea=True,
)

SONG = Plot(
    name="song",
    clause="wanted to learn to {skill}",
    outcome="{h} could {skill} at last",
    theme="learning something new",
    lesson="[Practice makes it easier|Everyone learns at a different speed]",
    titles=("{Hn} Learns to {Skill_title}", "One More Try", "The Day {Hn} Could {Skill_title}"),
    variants=(
        {
            "fail": "The first time it went so badly that even the snails laughed",
            "tip": "Do it slowly, and do it every day",
        },
        {
            "fail": "{he} tried it ten times, and ten times it went wrong",
            "tip": "Do not think of the others. Think of the water around you",
        },
        {"fail": "It was much harder than it looked", "tip": "I could not do it at first, either"},
    ),
    beats=(
        must("{h} wanted to learn to {skill}.", '"I want to {skill}," said {h} {time}.'),
        must("{fail}. {h} felt {sad}.", '{fail}. "I will never learn it," said {h}.'),
        may("{he} hid {spot} and did not want to see anybody.", "{he} swam away and almost gave up."),
        must('Then {fintro} came by. "{tip}," said {f}.', '{fintro} saw it and did not laugh. "{tip}," said {f}.'),
        must(
            "So {h} practised {spot2}, for {number} days.",
            "{h} tried again, and then again. It went a little better each time.",
        ),
        must(
            "And one morning it worked. {h} could {skill}! {he} felt {glad}.",
            '"Look at me!" called {h}. {He} could {skill}! They were all proud of {him}.',
        ),
    ),
    questions=(
        ("What did {h} want to learn?", "{h} wanted to learn to {skill}."),
        ("What advice did {f} give?", 'The advice was: "{tip}."'),
    ),
    sea=True,
)

PLOTS = (THIEF, NOISE, PET, ROBOT, SLEEP, SURPRISE, REEF, DEEP, SONG)
