# ruff: noqa: E501  (sentences and word lists are easier to read unbroken)
"""Word lists of the generators.  The words after a ``#`` are held out: no training document has them."""

from tools.demo_model.data.grammar import words

GIRLS = words("""
Mila, Anna, Lily, Rosa, Ella, Nora, Clara, Ivy, Maya, Zoe, Ruby, Lucy, Emma, Sara, Nina, Tess, Molly, Hazel, Jane,
Kate, Lena, Olive, Pearl, Penny, Polly, Mary, Alice, Amy, Bella, Cora, Daisy, Dora, Edith, Elsa, Eva, Fay, Flora, Gina,
Greta, Hana, Heidi, Holly, Ida, Inge, Iris, Jade, Jill, Joan, June, Kira, Laura, Leah, Lina, Lola, Mabel, Maria, Mei,
Mina, Nadia, Nell, Nia, Norah, Peggy, Petra, Priya, Rita, Rosie, Sally, Selma, Sofia, Stella, Susan, Tara, Thea, Tina,
Una, Vera, Violet, Wanda, Yara, Yuki, Zara, Amina, Layla, Leila, Carmen, Luna, Freya, Ada, Betty
# Tilda, Odette, Marigold, Imogen""")

BOYS = words("""
Tom, Ben, Sam, Max, Leo, Finn, Jack, Noah, Oscar, Hugo, Theo, Luke, Adam, Alex, Ali, Andy, Anton, Arlo, Arthur, Basil,
Bill, Bobby, Bruno, Carl, Charlie, Chris, Dan, David, Dean, Diego, Eddie, Eli, Emil, Eric, Felix, Frank, Fred, Gabriel,
George, Gus, Hans, Harry, Henry, Ian, Ivan, Jacob, Jake, James, Jim, Joe, John, Jonah, Juan, Karl, Ken, Kofi, Lars,
Lewis, Liam, Louis, Marco, Martin, Matt, Milo, Mike, Nick, Nico, Oliver, Omar, Otto, Owen, Pablo, Paul, Pedro, Peter,
Ralph, Ravi, Ray, Rob, Roman, Ryan, Simon, Stan, Steve, Tariq, Ted, Tim, Toby, Victor, Walter, Yusuf, Zane
# Alaric, Crispin, Fergus, Magnus""")

PET_NAMES = words("""
Pip, Dot, Bean, Button, Pepper, Ginger, Biscuit, Nibbles, Patch, Pickle, Rusty, Smoky, Snowy, Spot, Sunny, Tiny, Toffee,
Whiskers, Ziggy, Bramble, Bubbles, Buttons, Cocoa, Cookie, Crumb, Duke, Dusty, Fern, Fidget, Flick, Fluff, Gizmo, Hazelnut,
Honey, Jasper, Jumper, Lucky, Maple, Midnight, Misty, Mossy, Muffin, Nutmeg, Olly, Pebble, Pogo, Puddle, Quill, Scout,
Shadow, Skipper, Socks, Sprout, Teddy, Tumble, Twig, Waffle, Wiggles, Willow, Zippy
# Quince, Trundle, Bobbin""")

# Animals that walk, hop or fly in a story.
ANIMALS = words("""
fox, rabbit, bear, mouse, owl, cat, dog, hedgehog, squirrel, badger, deer, wolf, frog, duck, goose, hen, rooster, pig,
cow, horse, donkey, goat, sheep, lamb, lion, tiger, elephant, monkey, giraffe, zebra, hippo, rhino, camel, kangaroo,
koala, panda, parrot, crow, robin, sparrow, eagle, swan, turtle, lizard, snake, snail, ant, bee, butterfly, beetle,
spider, cricket, ladybird, mole, raccoon, skunk, beaver, porcupine, chipmunk, hamster, guinea pig, kitten, puppy, pony,
foal, calf, piglet, duckling, chick, bunny, bat, toad, gecko, peacock, pigeon, dove, seagull, penguin, polar bear,
reindeer, moose, elk, buffalo, llama, alpaca, yak, ox, mule, ram, turkey, ostrich, flamingo, stork, crane, woodpecker,
magpie, hawk, falcon, raven, cuckoo, swallow, wren, hare, weasel, stoat, lynx, leopard, cheetah, jaguar, gorilla,
chimpanzee, lemur, sloth, anteater, armadillo, tortoise, caterpillar, dragonfly, firefly, grasshopper, moth, worm,
crab, rat, bull, mare, kid goat, bear cub, lion cub, fox cub, wolf cub, baby elephant, baby owl, tomcat, sheepdog
# otter, heron, pelican, meerkat, wombat""")

SEA_ANIMALS = words("""
whale, dolphin, fish, goldfish, octopus, seahorse, starfish, shark, seal, walrus, squid, jellyfish, lobster, shrimp,
sea turtle, salmon, eel, clownfish
# narwhal, manta ray""")

BEINGS = words("""
robot, dragon, giant, ghost, fairy, wizard, witch, knight, prince, princess, king, queen, pirate, snowman, elf, troll,
mermaid, unicorn, scarecrow, goblin, gnome, magician, clown, astronaut, explorer, inventor
# phoenix, sphinx""")

JOBS = words("""
baker, farmer, teacher, doctor, nurse, fisherman, carpenter, tailor, painter, cook, gardener, shepherd, miller, sailor,
postman, librarian, clockmaker, shoemaker, blacksmith, potter, weaver, woodcutter, beekeeper, musician, singer, dancer,
bus driver, train driver, pilot, firefighter, police officer, mechanic, builder, plumber, electrician, shopkeeper,
butcher, barber, dentist, vet, zookeeper, lighthouse keeper, innkeeper, captain, engineer, scientist, writer, poet,
photographer, artist, toymaker, candlemaker, goldsmith, watchmaker, bricklayer, roofer, chimney sweep, milkman,
night watchman, park keeper, ferryman, basket maker, hat maker, piano teacher, swimming teacher, taxi driver, waiter,
cleaner, student, merchant, hunter, miner, diver, judge, mayor, stonemason, glassblower, bookseller, florist, puppeteer
# cartographer, locksmith, astronomer""")

# Things that can be carried, lost, broken, found and given away; all singular, all countable.
THINGS = words("""
hat, scarf, coat, button, key, ring, ball, kite, book, bell, drum, flute, violin, lamp, lantern, candle, cup, bowl, plate,
spoon, basket, bag, box, blanket, pillow, umbrella, watch, clock, map, compass, letter, notebook, pencil, paintbrush,
painting, photograph, necklace, bracelet, crown, coin, purse, wallet, whistle, trumpet, guitar, toy train, toy boat,
toy car, doll, teddy bear, puppet, balloon, ribbon, feather, shell, stone, marble, mirror, comb, brush, towel, apron,
shirt, sweater, mitten, glove, shoe, boot, sock, belt, cap, helmet, cape, mask, rope, ladder, hammer, shovel, rake, saw,
bucket, broom, teapot, kettle, pot, pan, jar, bottle, jug, mug, tray, tin, sack, suitcase, backpack, bicycle, scooter,
sled, skateboard, boat, raft, paddle, oar, fishing rod, net, telescope, magnifying glass, camera, radio, music box,
globe, puzzle, card, dice, chess piece, paper plane, paper star, paper boat, story book, cookbook, songbook, diary,
calendar, stamp, ticket, flag, badge, medal, trophy, magnet, spring, wheel, cart, wagon, chair, stool, cushion, rug,
curtain, vase, flower pot, watering can, seed, acorn, walnut, pine cone, leaf, rose, tulip, sunflower, pumpkin, carrot,
apple, pear, orange, lemon, peach, plum, melon, coconut, egg, loaf of bread, cake, pie, cookie, sandwich, pancake,
jar of honey, pot of jam, bag of nuts, wooden horse, wooden spoon, wooden box, soup spoon, iron key, glass bead,
tin soldier, rubber duck, snow globe, wind chime, spinning top, yo-yo, jump rope, rocking horse, dollhouse, treasure box,
magic wand, crystal, pearl, shield, lucky coin, pocket knife, thimble, needle, spool of thread, quilt, tent, sleeping bag
# accordion, hourglass, lunchbox, harmonica, mandolin""")

COLOURS = words("""
red, blue, green, yellow, orange, purple, pink, brown, black, white, grey, silver, golden
# turquoise, crimson""")

MATERIALS = words("wooden, paper, silver, tin, glass, woollen, leather, copper, brass, stone, clay, silk # velvet")

# Where a story happens, with its preposition.
HOMES = words("""
in a small village, in a quiet village, in a busy town, in a big city, in a little town by the sea, on a farm,
on a small farm, on a green hill, in a valley, at the edge of a forest, near a lake, beside a river, by the sea,
on an island, in the mountains, in a little house, in a tall house, in a cottage with a blue door, in an old stone house,
on a narrow street, above a bakery, next to a school, behind a church, near a railway station, close to a harbour,
in a lighthouse, on a houseboat, at the end of a long road, in a castle, in a village with only ten houses,
in a town full of bridges, in a land of snow, at the foot of a mountain, in a house full of books, near a windmill,
beside a pond, in a garden, in a small flat in the city, in a warm country far away, next to a park
# in a monastery, beside a canyon""")

WILD_HOMES = words("""
in a forest, in a green forest, in a deep forest, in a dark wood, at the edge of a wood, near a river, beside a stream,
by a pond, near a lake, on a hill, in a valley, in a meadow, under an old oak tree, in a hollow tree, in a garden,
behind a barn, on a farm, in the mountains, in a field of tall grass, under a bridge, in a warm den,
beside a waterfall, in a park in the city, near a village, on a small island, in an orchard, under a hedge
# in a marsh, beside a canyon""")

SEA_HOMES = words("""
in the sea, in the deep blue sea, in a warm sea, near a coral reef, in a quiet bay, beside a sunken ship,
in a cave under the water, near a small island, where the water was clear and warm, in the cold northern sea
# in a lagoon""")

# Where something may be found on land.
SPOTS = words("""
under the bridge, behind the mill, in the tall grass, beside the pond, under the old oak tree, behind the barn,
near the well, at the market, by the river, on top of the hill, inside a hollow log, in the garden, under a bench,
behind the school, near the bakery, beside the path, in the hay, by the gate, under a bush, on the stone wall,
in the attic, behind the shed, at the edge of the wood, near the fountain, on the steps of the church,
by the railway line, at the harbour, on the beach, under the stairs, in the orchard, between two rocks,
in the apple tree, beside the stream, in the corn field, near the windmill, under the table, behind the door,
in the town square, at the crossroads, on the old boat, in the cellar, beside the scarecrow, in a ditch,
under a pile of leaves, near the post office, behind the library, on the playground, beside the bus stop,
in the kitchen, by the fire, on the window sill, under the bed, in the cupboard, at the top of the stairs,
next to the campfire, in the cave, at the foot of the mountain, by the waterfall, near the beehives, in the mud,
under the rose bush, behind the curtain, in the snow, beside the road, in front of the shop, near the lighthouse,
on the roof, in the stable, among the pumpkins, behind the hen house, under the wagon, in the rowing boat,
beside the lake, in a bird's nest, at the bottom of the garden, on the swing, in the sand, near the old tower,
by the letter box, in the laundry basket, under the doormat, behind the stove, in the meadow, between the tree roots,
at the fair, in the park, near the duck house, beside the greenhouse, on the picnic table, in the wheelbarrow,
under the willow tree, behind the theatre, by the school gate, in the reading room, near the bell tower,
on the little island, in the boat house, beside the signpost, at the end of the pier
# in the pantry, under the haystack, behind the chapel""")

SEA_SPOTS = words("""
behind a rock, in a coral cave, under a big shell, among the seaweed, beside the sunken ship, in the soft sand,
near an old anchor, inside a clay pot, at the edge of the reef, between two stones, in a patch of sea grass
# under a jetty""")

FOODS = words("""
bread, soup, cake, apple pie, cheese, honey, rice, pancakes, noodles, porridge, stew, cookies, jam, toast, salad, pizza,
pasta, berries, nuts, chocolate, ice cream, popcorn, potatoes, carrots, tomato soup, fish, eggs, beans, corn, grapes,
cherries, pears, oranges, bananas, plums, lemon cake, ginger biscuits, warm milk, hot chocolate, tea
# dumplings""")

# Foods that take a verb in the singular.
MEALS = words("""
bread, soup, cake, apple pie, cheese, honey, rice, porridge, stew, jam, toast, salad, pizza, pasta, chocolate, popcorn,
tomato soup, fish, corn, lemon cake, warm milk, hot chocolate, ginger cake, onion soup, cherry pie, fresh bread, fruit salad
# marmalade, lentil soup""")

SKILLS = words("""
swim, sing, dance, read, write, paint, draw, cook, bake bread, ride a bicycle, climb trees, whistle, juggle, play the drum,
play the flute, play the violin, tie knots, sail a boat, skate, ski, jump rope, fly a kite, build a fire, catch a ball,
tell jokes, do magic tricks, count to a hundred, tell the time, make soup, grow tomatoes, sew, knit, carve wood,
fix clocks, build towers, play chess, stand on one leg, do a handstand, row a boat, make paper boats
# yodel, play the accordion""")

SEA_SKILLS = words("""
sing, dance, swim fast, jump over the waves, tell jokes, blow bubbles, hide in the sand, swim backwards,
count to a hundred, do tricks, find the way home, turn a somersault # glow in the dark""")

FEARS = words("""
the dark, thunder, deep water, high places, loud noises, spiders, big dogs, the wind, strangers, the old bridge, shadows,
the night, being alone, the cellar, the forest, speaking in front of others, making mistakes, storms, the attic,
falling down, getting lost # clowns, mirrors""")

SEA_FEARS = words("""
the dark, storms, loud noises, strangers, the deep water, shadows, being alone, the big waves, making mistakes,
getting lost, the cave # nets""")

ADJECTIVES = words("""
little, small, young, shy, brave, clever, kind, curious, quiet, cheerful, gentle, lonely, lazy, busy, hungry, sleepy,
careful, proud, stubborn, friendly, honest, patient, impatient, forgetful, clumsy, polite, funny, grumpy, old, happy
# boastful, dreamy""")

WEATHERS = words("""
sunny, windy, rainy, cold, warm, foggy, snowy, cloudy, bright, hot, grey, frosty, stormy, mild, clear # drizzly""")

TIMES = words("""
one morning, one day, one afternoon, one evening, one spring morning, one summer day, one autumn afternoon,
one winter evening, one Monday, one Saturday morning, one Sunday, early one morning, late one afternoon,
on the first day of spring, on a Tuesday, on market day, the day before the fair, one quiet evening, after lunch one day,
on the last day of summer, one cold morning, one warm night, just after breakfast one day, the day after the first snow""")

# Plain nouns for spelling, sorting and copying; each is one word without capitals.
PLAIN = words("""
table, chair, window, door, river, mountain, cloud, stone, tree, grass, flower, bird, horse, apple, bread, water, milk,
sugar, salt, paper, pencil, book, letter, music, song, dance, game, ball, house, garden, street, bridge, road, train,
boat, ship, plane, wheel, clock, watch, lamp, candle, fire, smoke, snow, rain, wind, storm, summer, winter, spring,
autumn, morning, evening, night, week, month, year, number, word, story, picture, colour, shape, circle, square, line,
point, corner, wall, roof, floor, kitchen, bedroom, bath, mirror, towel, soap, brush, comb, shirt, coat, shoe, hat,
glove, sock, button, pocket, needle, thread, wool, cotton, silk, leather, wood, metal, iron, silver, gold, copper,
glass, plastic, rubber, brick, sand, clay, mud, dust, island, beach, ocean, lake, forest, field, farm, village, town,
city, market, shop, school, office, hospital, church, castle, tower, museum, library, theatre, park, zoo, fox, bear,
mouse, rabbit, sheep, goat, duck, goose, frog, snake, spider, tiger, lion, monkey, eagle, whale, shark, banana, cherry,
grape, lemon, melon, orange, peach, pear, plum, carrot, potato, onion, tomato, pepper, cheese, butter, honey, soup,
cake, pie, rice, bean, corn, nut, seed, leaf, root, branch, doctor, teacher, farmer, baker, sailor, king, queen, friend,
brother, sister, mother, father, child, family, neighbour, dream, idea, question, answer, secret, promise, gift, party,
holiday, journey, map, ticket, key, lock, box, bag, basket, bottle, cup, plate, spoon, fork, knife, bowl, pan
# barrel, tunnel, carpet, saddle, cactus""")
