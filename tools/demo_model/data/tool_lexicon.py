"""Words from which tool names, requests and values are made, in a training and a held-out half.

No word of the held-out half is used by a training document, neither in a function name nor in a value; that is
what makes copying measurable.  The held-out words are therefore rare ones that no fixed sentence needs.
"""

from dataclasses import dataclass

from tools.demo_model.data.documents import Split


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """One half of the words.  Every field holds lower-case words unless its name says otherwise."""

    changing_verbs: tuple[str, ...]
    """Verbs of tools that do something."""
    asking_verbs: tuple[str, ...]
    """Verbs of tools that tell something."""
    nouns: tuple[str, ...]
    """None that a well-known tool works on, such as ``file``: made-up tools must not compete with those."""
    qualifiers: tuple[str, ...]
    namespaces: tuple[str, ...]
    cities: tuple[str, ...]
    """Names of places, capitalised."""
    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    topics: tuple[str, ...]
    items: tuple[str, ...]
    """Things that can be bought, carried or listed."""
    tags: tuple[str, ...]
    stems: tuple[str, ...]
    """File names without their ending."""
    folders: tuple[str, ...]
    syllables: tuple[str, ...]
    """Pieces of made-up names."""
    companies: tuple[str, ...]


def words_of(text: str) -> tuple[str, ...]:
    """Returns the words between the blanks."""
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_TRAIN = Lexicon(
    changing_verbs=words_of(
        "add apply approve assign attach book build cancel change clean close copy create delete deploy disable"
        " edit enable export fill hide import insert install invite label launch lock log mark merge mount move"
        " notify open order park pause pin place plan play post print publish register release remove rename rent"
        " repair replace report request reserve reset resize restart restore resume rotate save schedule send"
        " share ship start stop store submit switch tag toggle transfer turn_off turn_on undo unlock update upload"
    ),
    asking_verbs=words_of(
        "check compare compute count describe estimate fetch filter find get inspect list load look_up measure"
        " preview query read rank review search select show sort summarize test track validate view"
    ),
    nouns=words_of(
        "account address alarm album animal appointment article asset backup badge balloon banner basket battery"
        " bicycle bill boat book booking bottle box bridge bucket budget building button cabin cable camera"
        " candle car card cart catalog certificate chair channel chart class client clock cloud coat color column"
        " comment company container contract course cup customer dashboard database deadline delivery"
        " desk device dish document door dress driver employee engine entry exam expense experiment"
        " farm feature fence field filter fleet flight flower form game garden gate gift goal grade"
        " group guest guitar hall hotel house image inbox index ingredient invoice island issue job journal"
        " key kitchen lamp lane lease lesson letter library link list loan location machine map meal meeting"
        " member menu meter model monitor movie museum network office oven package painting park"
        " partner patient payment phone photo picture pipe plant player playlist plugin poem policy poll pool post"
        " price printer product profile project purchase question quiz queue record recipe region rental report"
        " request review ring road robot role room route rule sample school score seat section sensor server"
        " service session shelf ship shipment shop shirt signal site snapshot station stock store story"
        " student subject survey table team template theme thread ticket tool topic tour toy train"
        " trip truck user vehicle version video visit visitor volume wallet warehouse window worker zone"
    ),
    qualifiers=words_of(
        "active daily local public private weekly new old main shared remote recent favorite monthly urgent"
        " personal central internal draft final latest school city home team"
    ),
    namespaces=words_of(
        "acme api app assistant calendar cloud core data demo files functions github home hub inventory lab mail"
        " mcp media office ops orders people shop smart sales store system team tools travel web work workspace"
    ),
    cities=_phrases(
        "Paris, London, Berlin, Madrid, Rome, Oslo, Vienna, Prague, Dublin, Lisbon, Warsaw, Athens, Helsinki,"
        " Stockholm, Copenhagen, Brussels, Amsterdam, Budapest, Zurich, Geneva, Milan, Naples, Venice, Florence,"
        " Munich, Hamburg, Cologne, Leipzig, Lyon, Nice, Bordeaux, Marseille, Toulouse, Barcelona, Seville, Porto,"
        " Edinburgh, Glasgow, Manchester, Liverpool, Bristol, Oxford, Cambridge, York, Leeds, Tokyo, Kyoto, Osaka,"
        " Seoul, Beijing, Shanghai, Delhi, Mumbai, Bangkok, Hanoi, Manila, Jakarta, Singapore, Sydney, Melbourne,"
        " Perth, Auckland, Cairo, Nairobi, Lagos, Accra, Tunis, Dakar, Cape Town, New York, Boston, Chicago,"
        " Denver, Seattle, Portland, San Francisco, Los Angeles, San Diego, Houston, Dallas, Austin, Miami, Atlanta,"
        " Toronto, Montreal, Vancouver, Ottawa, Mexico City, Bogota, Lima, Santiago, Buenos Aires, Montevideo,"
        " Rio de Janeiro, Sao Paulo, Quito, Havana, Istanbul, Ankara, Tel Aviv, Dubai, Doha, Reykjavik, Riga,"
        " Tallinn, Vilnius, Sofia, Bucharest, Zagreb, Belgrade, Kyiv, Turin, Ghent, Bergen, Malmo, Aarhus, Tampere,"
        " Salzburg, Graz, Basel, Krakow, Gdansk, Brno, Springfield, Riverside, Fairview, Lakewood, Oakdale"
    ),
    first_names=words_of(
        "Anna Ben Clara David Ella Finn Grace Hugo Iris Jack Kate Leo Maria Noah Olivia Paul Rosa Sam Tara Victor"
        " Wendy Adam Bella Chen Dana Eric Fatima George Hana Ivan Julia Karim Lena Marco Nina Omar Petra Ravi Sofia"
        " Tom Uma Vera Will Yusuf Zoe Alice Bruno Carmen Diego Emma Felix Greta Henry Irene Jonas Lucy Mateo Nora"
        " Oscar Priya Ruth Simon Theo Mia Lars Amir Mina Peter Sara Max Elena Daniel Laura Martin Amy Kenji Aisha"
    ),
    last_names=words_of(
        "Smith Jones Brown Miller Davis Garcia Lopez Wilson Moore Taylor Lee Clark Lewis Walker Hall Young King"
        " Wright Hill Green Baker Nelson Carter Turner Parker Evans Collins Stewart Morris Cook Rogers Reed Bell"
        " Cooper Ward Gray Wood Ross Foster Long Patel Kim Chen Silva Rossi Weber Novak Berg Larsen Dubois Moreau"
        " Schmidt Fischer Haddad Okafor Tanaka Sato Singh Khan Costa Ferrari Jansen Nielsen Kowalski Ivanov"
    ),
    topics=_phrases(
        "solar panels, the history of tea, how bees make honey, cheap flights, bread baking, electric cars,"
        " garden birds, football results, old maps, healthy breakfast ideas, space travel, the moon landing, jazz"
        " music, river cleaning, climate news, wooden toys, mountain hiking, chess openings, python tutorials, cat"
        " food, the weather this week, modern art, ocean waves, winter boots, easy pasta recipes, school holidays,"
        " night trains, wind energy, learning the piano, rust programming, home repair, green tea, city parks,"
        " robot vacuum cleaners, medieval castles, bicycle lanes, deep sea fish, coffee beans, indoor plants, used"
        " books, how to tie a knot, paper boats, hearing aids, sleep and memory, polar bears, street food, apple"
        " trees, the price of gold, fast sorting, unit testing, sparse matrices, model compression, disk caches"
    ),
    items=_phrases(
        "apples, bananas, bread, butter, cheese, eggs, milk, rice, pasta, tomatoes, potatoes, onions, carrots,"
        " coffee, tea, sugar, salt, flour, honey, oranges, lemons, grapes, a pencil, a notebook, a lamp, a chair,"
        " a kettle, a blanket, a pillow, a towel, batteries, light bulbs, paper towels, soap, shampoo, toothpaste,"
        " a backpack, a raincoat, a scarf, gloves, boots, socks, a hammer, nails, paint, a ladder, tape, glue,"
        " scissors, stamps, envelopes, printer paper, a phone charger, headphones, a keyboard, a mouse, cat food,"
        " dog food, flower seeds, olive oil, yogurt, chicken, salmon, mushrooms, spinach, peppers, cereal, juice"
    ),
    tags=words_of(
        "urgent home work travel family food health money school music sports news science art garden books later"
        " blue red green yellow black white small large fast slow new old cheap quiet shared draft done open"
        " backend frontend docs bug test release design north south east west spring summer winter"
    ),
    stems=words_of(
        "hello notes main index app server client config settings README report summary todo list data users"
        " orders utils parser lexer router model test_main test_parser schema query build deploy setup run draft"
        " letter story poem plan budget recipe schedule input output result log errors names words numbers scores"
        " math_tools geometry matrix cache store loader writer reader menu contact about team invoice shopping"
        " ideas journal chapter1 chapter2 intro example sample demo script job worker queue events routes views"
        " styles theme colors icons header footer login signup profile search tree graph sort stack heap hash"
    ),
    folders=words_of(
        "src docs tests lib data scripts config notes public static app web server client tools examples build"
        " home tmp work projects reports images assets photos letters drafts recipes logs include pkg cmd internal"
        " components pages models views services api core backend frontend"
    ),
    syllables=words_of(
        "ba be bo ca co da de di do fa fe fi ga go ha he ho ja jo ka ke ki ko la le li lo ma me mi mo na ne ni no"
        " pa pe po ra re ri ro sa se si so ta tin ti to va ve vi vo wa we ya yo za ze zo tor mar len vin sol dan"
    ),
    companies=_phrases(
        "Acme, Northwind, Blue River, Contoso, Green Leaf, Bright Path, Silver Lake, Red Maple, Oak and Sons, Fast"
        " Freight, Sunny Foods, Hill Top Bank, City Cycles, Paper Moon, Tall Ships, Old Mill, Clear Sky, Iron Works"
    ),
)

_HELD_OUT = Lexicon(
    changing_verbs=words_of("calibrate dispatch enroll harvest varnish redeem renew subscribe brew forward encrypt"),
    asking_verbs=words_of("decode weigh locate audit forecast retrieve"),
    nouns=words_of(
        "lantern orchard vineyard glacier satellite trombone parcel ferry telescope aquarium bakery kiosk marathon"
        " mosaic pigeon turbine voucher walnut wardrobe zeppelin compass harbor tractor blueprint"
    ),
    qualifiers=words_of("seasonal nightly rustic regional"),
    namespaces=words_of("quartz nimbus fjord willow"),
    cities=_phrases(
        "Ljubljana, Bratislava, Cardiff, Wellington, Nagoya, Busan, Phoenix, Calgary, Cusco, Marrakesh, Trondheim,"
        " Utrecht, Valencia, Bologna, Dresden, Windhoek, Maplewood, Stonebridge"
    ),
    first_names=words_of("Beatrix Cosmo Delphine Ezra Freya Gideon Imogen Jasper Linnea Magnus Ottilie Quentin Rowan"),
    last_names=words_of("Abernathy Blackwood Castellan Drummond Eriksen Fairbanks Galloway Hawthorne Ivarsson Kessler"),
    topics=_phrases(
        "volcanic soil, silent films, beekeeping laws, tidal power, origami cranes, alpine flowers, steam engines,"
        " desert foxes, violin strings, glass blowing, lighthouse keepers, sourdough starters"
    ),
    items=_phrases(
        "cinnamon, walnuts, a corkscrew, candles, oat flakes, a thermos, blueberries, velvet curtains, an umbrella,"
        " chalk, a magnet, ginger, plums"
    ),
    tags=words_of("crimson violet turquoise fragile seasonal nocturnal overdue vintage coastal"),
    stems=words_of("haiku ledger manifest telemetry glossary checklist tokenizer_notes anthem beacon orbit quiver"),
    folders=words_of("vault cellar atlas greenhouse observatory workshop"),
    syllables=words_of("bri cle dra frol gle kra plu qua sti thu vro wex zan nyl ox um"),
    companies=_phrases("Hexagon Tea, Velvet Rail, Marble Arch Tools, Pinecone Press, Copper Kettle"),
)


def lexicon(split: Split) -> Lexicon:
    """Returns the words of one half."""
    return _TRAIN if split == "train" else _HELD_OUT
