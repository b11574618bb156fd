# ruff: noqa: E501  (sentences and word lists are easier to read unbroken)
"""Plots about two characters: friendship, quarrels, help, contests."""

from tools.demo_model.data.plots import Plot, may, must

LONELY = Plot(
    name="lonely",
    clause="was lonely and wanted a friend",
    outcome="{h} and {f} became friends",
    theme="friendship",
    lesson="[To find a friend, you have to say hello|A friend may be nearer than you think]",
    titles=("{Hn} Finds a Friend", "The Lonely {Kind}", "A Friend for {Hn}", "{Hn} and {Fn}"),
    variants=(
        {
            "why": "{he} had just moved there and knew nobody",
            "do": "look for round stones",
            "end": "Every day after that they looked for stones together",
        },
        {
            "why": "{he} was too shy to talk to anyone",
            "do": "make up songs",
            "end": "Every evening after that you could hear them sing",
        },
        {
            "why": "the others said {he} was different",
            "do": "watch the clouds",
            "end": "After that they lay in the grass every sunny day and gave names to the clouds",
        },
        {
            "why": "{his} best friend had moved far away",
            "do": "play hide and seek",
            "end": "After that they played hide and seek until it was too dark to see",
        },
        {
            "why": "{he} lived a long way from everybody else",
            "do": "tell stories",
            "end": "After that they told each other a story every night",
        },
        {
            "why": "{he} worked all day and never had time to talk",
            "do": "eat {food} in the sun",
            "end": "After that they ate together every day",
        },
    ),
    beats=(
        must(
            "{h} was lonely, because {why}.",
            "But {h} had no friends, because {why}.",
            "Every day {h} was alone. {he} felt {sad}, because {why}.",
        ),
        may(
            "{he} liked to {do}, but it was no fun alone.",
            '"I wish I had somebody to {do} with," {he} said to the moon.',
            "{h} talked to {his} shadow, but the shadow never answered.",
        ),
        must(
            "{time}, {h} was {outside} when {he} heard somebody crying. It was {fintro}.",
            "{time}, {h} saw {fintro} {outside}. {f} was alone, too.",
            "{time}, there was a noise {outside}. {h} went to look and found {fintro}.",
        ),
        must(
            'At first {h} was afraid to speak. Then {he} said, very quietly, "Hello. My name is {hn}." "Hello," said {f}. "I am {fn}."',
            '"Are you all right?" asked {h}. "I have nobody to play with," said {f}. "Neither do I," said {h}.',
            "{h} wanted to run away. But {he} was tired of being alone, so {he} said hello. {f} looked up and smiled.",
        ),
        must(
            '"What do you like to do?" asked {f}. "I like to {do}," said {h}. "So do I!" said {f}.',
            '"Do you want to {do} with me?" asked {h}. "I would love to," said {f}.',
        ),
        may(
            "They shared some {food}, and {f} told a joke about a {junk_animal}. {h} laughed so much that {he} fell over.",
            "They talked and talked until the stars came out.",
        ),
        must("{end}. {h} was not lonely any more.", "{end}. {h} felt {glad}."),
    ),
    questions=(
        ("Why was {h} lonely?", "{h} was lonely because {why}."),
        ("Who became {h}'s friend?", "{f} became {h}'s friend."),
        ("What did {h} like to do?", "{h} liked to {do}."),
        ("Where did {h} meet {f}?", "{h} met {f} {outside}."),
    ),
)

QUARREL = Plot(
    name="quarrel",
    clause="had a quarrel with {his} friend {fn}",
    outcome="{h} and {f} said sorry and were friends again",
    theme="a quarrel between friends",
    lesson="[A friend is worth more than being right|Saying sorry is the first step]",
    titles=("The Quarrel", "{Hn} and {Fn} Make Peace", "Two Friends and One {T}"),
    variants=(
        {
            "about": "who had found the {t} first",
            "event": "a sudden rain came, and the river began to rise",
            "save": "{h} could not carry everything to the hill alone, and neither could {f}. Together they did it in no time",
        },
        {
            "about": "who was faster",
            "event": "{f} stepped into a hole and hurt {fhis} foot",
            "save": "{h} ran back at once and helped {fhim} home",
        },
        {
            "about": "what game to play",
            "event": "it got dark, and each of them was alone in the dark",
            "save": '"Are you there?" called {h}. "I am here," called {f}. They walked towards each other\'s voice',
        },
        {
            "about": "who should carry the {t}",
            "event": "the {t} fell down and rolled {spot}",
            "save": "{h} held {f} by the hand, and {f} reached down and got it. One alone could not have done it",
        },
        {
            "about": "who had eaten the last of the {food}",
            "event": "they heard a small noise, and there sat a mouse with crumbs on its nose",
            "save": "They looked at the mouse, they looked at each other, and they began to laugh",
        },
        {
            "about": "whose idea was better",
            "event": "a strong wind blew down both of the towers they had built",
            "save": "They put the two ideas together, and the new tower did not fall",
        },
    ),
    beats=(
        must(
            "{h} and {fintro} were best friends. But {time}, they had a quarrel about {about}.",
            "{h} had a good friend, {fintro}. {time}, the two of them began to argue about {about}.",
        ),
        must(
            '"You are wrong!" said {h}. "No, you are wrong!" said {f}. And they both walked away.',
            '"I will never play with you again," said {f}. "I do not care," said {h}. But {he} did care.',
            "They shouted at each other. Then {h} went one way and {f} went the other way.",
        ),
        may(
            "At home it was very quiet. {h} felt {sad}. There was nobody to talk to.",
            "{h} tried to play alone, but it was not the same.",
            '{h} told {g} about it. "Who was right?" asked {g}. {h} could not even remember.',
        ),
        must("Then something happened: {event}.", "But that same day {event}."),
        must("{save}.", "They forgot that they were angry. {save}."),
        must(
            '"I am sorry," said {h}. "I am sorry, too," said {f}. And that was the end of the quarrel.',
            '"Are we still friends?" asked {f}. "Of course we are," said {h}, and {he} felt {glad}.',
        ),
    ),
    questions=(
        ("What did {h} and {f} quarrel about?", "They quarrelled about {about}."),
        ("Who was {h}'s friend?", "{h}'s friend was {f}."),
        ("Did they become friends again?", "Yes. They said sorry and became friends again."),
    ),
)

RESCUE = Plot(
    name="rescue",
    clause="helped {fintro}",
    outcome="later {f} helped {h} in return",
    theme="helping others",
    lesson="[Kindness comes back to you|Even a small friend can be a great help]",
    titles=("{Hn} Helps {Fn}", "A Good Deed", "How {Fn} Said Thank You"),
    variants=(
        {
            "stuck": "was stuck in the mud",
            "free": "found a long branch and pulled {fhim} out",
            "later": "{h} lost {his} way in the fog",
            "back": "called {his} name again and again, and {h} followed the voice home",
        },
        {
            "stuck": "was caught in an old net",
            "free": "bit and pulled at the ropes until {f} was free",
            "later": "{h} dropped {his} {t} into a deep hole",
            "back": "was just the right size to climb down and bring it back",
        },
        {
            "stuck": "had a thorn in {fhis} foot",
            "free": "took the thorn out very gently",
            "later": "a big storm broke the roof of {h}'s home",
            "back": "came with tools and mended the roof before night",
        },
        {
            "stuck": "was sitting on a roof and could not get down",
            "free": "brought a ladder and held it still",
            "later": "{h} was ill and could not go out for {food}",
            "back": "brought {food} every day until {h} was well",
        },
        {
            "stuck": "had fallen into a pit",
            "free": "let down a rope and pulled with all {his} strength",
            "later": "a fire started near {h}'s home at night",
            "back": "saw the smoke first and woke {h} just in time",
        },
    ),
    beats=(
        must(
            "{time}, {h} was on {his} way home when {he} heard a cry for help {outside}.",
            '{time}, {h} was walking along when a voice called, "Help! Please help me!" It came from a place {outside}.',
        ),
        must(
            "It was {fintro}, who {stuck}.",
            "There was {fintro}. {f} {stuck} and looked very frightened.",
        ),
        may(
            '"I am in a hurry," thought {h}. But {he} could not leave {f} there.',
            "Others had walked past and done nothing. {h} stopped.",
            '"Stay calm," said {h}. "I will think of something."',
        ),
        must(
            '{h} {free}. "Thank you!" said {f}. "One day I will help you, too."',
            'So {h} {free}. "I will never forget this," said {f}.',
        ),
        may(
            "{h} smiled. How could {f} ever help {him}? {he} soon forgot about it.",
            "The days went by, and {h} thought no more about it.",
        ),
        must("Then, {number} weeks later, {later}.", "But in the autumn {later}."),
        must("When {f} heard of it, {fhe} came at once. {f} {back}.", "And who came to help? It was {fn}! {f} {back}."),
        must(
            '"Now we are even," said {f}. "No," said {h}, "now we are friends."',
            "{h} felt {glad}, and from then on the two were friends.",
        ),
    ),
    questions=(
        ("Who needed help first?", "{f} needed help first."),
        ("What was wrong with {f}?", "{f} {stuck}."),
        ("What did {h} do?", "{h} {free}."),
        ("How did {f} help later?", "{f} {back}."),
    ),
)

RACE = Plot(
    name="race",
    clause="wanted to win a race",
    outcome="{h} stopped to help {f}, and they crossed the line together",
    theme="a race",
    lesson="[Winning is nice, but being kind is better|There is more than one way to win]",
    titles=("The Great Race", "{Hn} and the Race", "First Place"),
    variants=(
        {
            "prize": "a silver cup",
            "fall": "had fallen over a root and was holding {fhis} knee",
            "path": "from the bridge to the old mill",
        },
        {
            "prize": "a basket full of {food}",
            "fall": "had run out of strength and was sitting on the ground",
            "path": "around the lake",
        },
        {
            "prize": "a golden medal",
            "fall": "had taken the wrong turn and did not know where to go",
            "path": "up the hill and down again",
        },
        {"prize": "a {tt}", "fall": "was stuck in a hedge", "path": "through the wood and back to the town"},
    ),
    beats=(
        must(
            "Every year there was a race {path}. The prize was {prize}. This year {h} wanted to win.",
            "{time}, a sign went up: there would be a race {path}, and the winner would get {prize}. {h} wanted that prize.",
        ),
        must(
            "{h} practised every day. {he} ran in the morning, and {he} ran in the evening.",
            "For {number} weeks {h} got up early to run, even when it was {weather}.",
        ),
        may(
            '"You will not win," said {f}. "I am faster than you." {h} said nothing and went on running.',
            '{g} gave {him} good advice: "Start slowly, and keep something for the end."',
        ),
        must(
            "On the day of the race, {h} was soon in front. Only {f} was faster.",
            "The race began. {h} ran past one runner, then another. Now there was only {f} ahead of {him}.",
        ),
        must(
            "Then, just before the end, {h} saw {f}. {f} {fall}.",
            "But near the last turn, {f} {fall}.",
        ),
        must(
            '{h} could see the finish. {he} could win now! But {he} stopped and held out a hand. "Come, we will go together."',
            '"If I stop, I will lose," thought {h}. {he} stopped all the same and helped {f} up.',
        ),
        must(
            "They crossed the line side by side, and everybody cheered. The judge cut the prize in two, and {h} felt {glad}.",
            'Somebody else won the race. But {f} said, "To me, you are the winner," and {h} felt {glad}.',
        ),
    ),
    questions=(
        ("What was the prize?", "The prize was {prize}."),
        ("What happened to {f}?", "{f} {fall}."),
        ("Why did {h} stop?", "{h} stopped to help {f}."),
    ),
)

SICK = Plot(
    name="sick",
    clause="visited a sick friend",
    outcome="{f} laughed again and soon got well",
    theme="a sick friend",
    lesson="[A good friend is the best medicine|A little time can be a great gift]",
    titles=("A Visit to {Fn}", "Get Well Soon", "{Hn} Cheers Up {Fn}"),
    variants=(
        {
            "what": "a bad cold",
            "idea": "acted out a play at the window, with socks as puppets",
            "said": "I have not laughed like that for a week",
        },
        {
            "what": "a broken leg",
            "idea": "made a little cart, so that {f} could come outside",
            "said": "I thought I would miss the whole summer",
        },
        {
            "what": "a fever",
            "idea": "brought cool water and read a story aloud until {f} fell asleep",
            "said": "Your voice was better than any medicine",
        },
        {
            "what": "a stomach ache",
            "idea": "cooked a thin soup and told funny stories while it cooled",
            "said": "I feel better already",
        },
        {
            "what": "a sore throat",
            "idea": "invented a way to talk with signs, so that {f} did not have to speak",
            "said": "Now we have a secret language",
        },
    ),
    beats=(
        must(
            "{time}, {h} went to play with {fintro}. But {f} was in bed with {what}.",
            "{h} waited {outside} for {fintro}, but {f} did not come. {f} had {what} and had to stay in bed.",
        ),
        must(
            "{f} felt {sad}. Outside it was {weather}, and all the others were playing.",
            '"It is so boring here," said {f}. "Nobody comes to see me."',
        ),
        may(
            "{h} wanted to bring something, so {he} looked in the garden for flowers. There were none.",
            '"What would make me happy if I were ill?" {h} asked {himself}.',
            '{h} asked {g} what to do. "Give {fhim} some of your time," said {g}.',
        ),
        must("Then {h} had an idea. {he} {idea}.", "The next day {h} came back. {he} {idea}."),
        must(
            '{f} smiled for the first time in days. "{said}," {fhe} said.',
            '"{said}," said {f}, and {fhis} eyes were bright.',
        ),
        must(
            "{h} came every day with some {food} until {f} was well. Then they both ran outside, and {h} felt {glad}.",
            'Before the week was over, {f} was well again. "Thank you, {hn}," {fhe} said. {h} felt {glad}.',
        ),
    ),
    questions=(
        ("Who was sick?", "{f} was sick."),
        ("What was wrong with {f}?", "{f} had {what}."),
        ("What did {h} do for {f}?", "{h} {idea}."),
    ),
)

TEACH = Plot(
    name="learn",
    things="hat, cap, scarf, book, bag, shoe, glove, notebook, towel, belt",
    clause="wanted to learn to {skill}",
    outcome="after a lot of practice {h} could {skill}",
    theme="learning something new",
    lesson="[Nobody can do everything on the first day|Practice and patience work wonders]",
    titles=("{Hn} Learns to {Skill_title}", "Try Again, {Hn}", "One More Time"),
    variants=(
        {
            "fail": "The first time it went so badly that everyone laughed",
            "tip": "Do it slowly. First the small part, then the big part",
            "show": "at the summer fair",
        },
        {
            "fail": "{he} tried it three times, and three times it went wrong",
            "tip": "Do not look at your feet. Look where you want to go",
            "show": "in front of all the neighbours",
        },
        {
            "fail": "{he} got so angry that {he} threw {his} {t} on the ground",
            "tip": "Take a deep breath, count to ten and begin again",
            "show": "on the birthday of {g}",
        },
        {
            "fail": "It was much harder than it looked",
            "tip": "I could not do it at first, either. I practised every day",
            "show": "at the school party",
        },
        {
            "fail": "{he} was so nervous that nothing worked at all",
            "tip": "Close your eyes and think of something nice first",
            "show": "at the market",
        },
    ),
    beats=(
        must(
            "{h} wanted to learn to {skill}. All the others could do it already.",
            '{time}, {h} saw {fintro}. {f} could {skill}, and it looked wonderful. "I want to {skill}, too," said {h}.',
            "There was one thing {h} could not do. {he} could not {skill}.",
        ),
        must("{fail}. {h} felt {sad}.", '{fail}. "I will never learn it," said {h}.'),
        may(
            "{he} went away and sat {spot}, where nobody could see {him}.",
            "{he} almost gave up.",
            '"It is not for everyone," said a neighbour. That did not help.',
        ),
        must(
            '{f} sat down beside {him}. "{tip}," said {f}.',
            'Then {g} gave {him} some advice. "{tip}," said {g}.',
        ),
        must(
            "{h} tried again. It went a little better. {he} practised for {number} days, in the morning and in the evening.",
            "So {h} practised every day {spot2}. Each day it went a little better.",
        ),
        must(
            "At last, {show}, {h} showed what {he} had learned. {he} could {skill}, and everybody clapped.",
            "And then, {show}, it worked. {h} could really {skill}!",
        ),
        must(
            '{h} felt {glad}. And when a small {junk_animal} asked, "How did you learn it?" {h} said, "I tried one more time."',
            '"I did it!" said {h}. "I knew you could," said {f}, and {h} felt {glad}.',
        ),
    ),
    questions=(
        ("What did {h} want to learn?", "{h} wanted to learn to {skill}."),
        ("What advice did {h} get?", 'The advice was: "{tip}."'),
        ("Where did {h} show what {he} had learned?", "{h} showed it {show}."),
        ("Could {h} {skill} at the end?", "Yes. At the end {h} could {skill}."),
    ),
)

FEAR = Plot(
    name="fear",
    things="scarf, hat, lantern, teddy bear, whistle, lucky coin, blanket, bell, stone, shell, feather, ribbon",
    clause="was afraid of {fear}",
    outcome="{h} was brave and was not so afraid of {fear} any more",
    theme="being brave",
    lesson="[Being brave means being afraid and doing it all the same|Fear gets smaller when you look at it]",
    titles=("Brave {Hn}", "{Hn} Is Not Afraid", "The Night {Hn} Was Brave"),
    variants=(
        {
            "need": "{f} did not come home in the evening",
            "task": "find {fhim}",
            "found": "{f} was {spot3}, with a hurt foot, and was very glad to see {him}",
        },
        {
            "need": "the lamp of {g} went out, and {g} called for help",
            "task": "bring {ghim} a new light",
            "found": "{g} was sitting {spot3} and waiting for somebody to come",
        },
        {
            "need": "a baby {junk_animal} was crying somewhere outside",
            "task": "bring it back to its mother",
            "found": "the little one was {spot3}, cold and hungry",
        },
        {
            "need": "somebody had to carry a message to {g}",
            "task": "take the message",
            "found": "{g} was {spot3} and read the message at once",
        },
    ),
    beats=(
        must(
            "{h} was afraid of {fear}. {he} did not like to talk about it.",
            "There was only one thing that {h} was afraid of, and that was {fear}.",
            "Everybody thought that {h} was brave. But {h} was afraid of {fear}.",
        ),
        may(
            '"It is silly," {he} told {himself}. But that did not help.',
            "The others laughed about it, and {h} felt {sad}.",
            '"Everyone is afraid of something," said {f}. "I am afraid of {junk}."',
        ),
        must("{time}, {need}. There was nobody else who could go.", "Then, {time}, {need}. All the others were away."),
        must(
            "{h} had to {task}. {his} knees shook. {he} thought of {fear} and wanted to hide {spot}.",
            '"I have to {task}," said {h}. "But what about {fear}?" {his} heart beat fast.',
        ),
        must(
            "{he} took one small step, and then another. To keep {his} courage up, {he} sang a little song.",
            "{he} held {his} {t} tight and counted {his} steps. One, two, three. At thirty {he} noticed that nothing bad had happened.",
        ),
        must("At last {he} was there: {found}.", "And so {he} made it: {found}."),
        must(
            '"Were you not afraid?" they asked later. "I was," said {h}. "But I went all the same." {he} felt {glad}.',
            "From that day on, {h} was not so afraid of {fear}. {he} felt {glad}.",
        ),
    ),
    questions=(
        ("What was {h} afraid of?", "{h} was afraid of {fear}."),
        ("What happened in the story?", "It began when {need}."),
        ("What did {h} have to do?", "{h} had to {task}."),
    ),
)

PLOTS = (LONELY, QUARREL, RESCUE, RACE, SICK, TEACH, FEAR)
