"""Sentences in many scripts, written for the tests: all combinations of a few phrases, 1,000 or 216 per language."""

from __future__ import annotations

from itertools import product

# For each language the separator between the three parts of a sentence, and ten choices for each part.
_PHRASES = {
    "german": (
        " ",
        "Die Bürgermeisterin|Der Schüler|Mein Großvater|Die Köchin|Das Mädchen|Der Förster|Unsere Nachbarn|"
        "Die Ärzte|Der müde König|Niemand",
        "öffnete schon|hörte schön|wurde für|würde gern über|spricht täglich über|fuhr früher durch|"
        "kaufte gestern|grüßte freundlich|zählte später|schätzte nur",
        "die Brücke.|alle Häuser!|zwölf Bücher.|das Gemüse, 3,5 Kilo schwer.|die Straße?|süße Äpfel.|"
        "den Fluss am 3. Oktober.|die Vögel im Garten.|viele Gäste.|ein schweres Fass.",
    ),
    "russian": (
        " ",
        "Старый учитель|Моя сестра|Соседский мальчик|Ёжик|Каждый третий житель|Капитан корабля|Наша бабушка|"
        "Молодой врач|Весёлый почтальон|Никто из них",
        "вчера нашёл|никогда не видел|хорошо знает|ещё помнит|часто рисует|всё же любит|медленно читает|"
        "купил|потерял|хочет показать",
        "большой дом.|эту книгу!|тёплый хлеб.|синее море.|чай с лимоном?|1,5 метра верёвки.|подъезд №12.|"
        "старую карту.|зелёный лес.|новый фильм.",
    ),
    "hindi": (
        " ",
        "लड़का|मेरी बहन|बूढ़ा किसान|वह अध्यापक|हमारा पड़ोसी|छोटी बच्ची|राजा|डॉक्टर|मित्र|यात्री",
        "बाज़ार में|स्कूल के पास|सुबह जल्दी|नदी किनारे|हर दिन|कल शाम को|धीरे-धीरे|गाँव में|घर पर|खुशी से",
        "किताब पढ़ता है।|फल ख़रीदता है।|गाना गाता है।|चिट्ठी लिखता है।|पानी पीता है।|२,५०० रुपये देता है।|"
        "क्रिकेट खेलता है।|काम करता है।|हँसता है!|क्या ढूँढता है?",
    ),
    "korean": (
        " ",
        "우리 할머니는|그 학생은|옆집 아이가|젊은 의사는|내 친구는|선생님께서|늙은 어부가|모두가|왕은|누군가",
        "아침마다|시장에서|조용히|학교 앞에서|어제 저녁|강가에서|비가 와도|3,000원으로|천천히|집에서",
        "책을 읽는다.|사과를 샀다.|노래를 불렀다!|편지를 썼어요.|물을 마셨니?|그림을 그린다.|춤을 췄다.|"
        "밥을 먹었습니다.|값을 깎았다.|꽃을 심었다.",
    ),
    "chinese": (
        "",
        "老师|我的妹妹|隔壁的孩子|年轻的医生|那位渔夫|国王|我们的邻居|学生们|没有人|司机",
        "每天早上|在市场里|慢慢地|昨天晚上|在河边|高兴地|在学校门口|下雨时|从来|偶尔",
        "读书。|买了三个苹果。|唱歌！|写了一封信。|喝水吗？|画画。|花了1，500元。|吃饭，然后睡觉。|种花。|骑自行车。",
    ),
    "japanese": (
        "",
        "先生は|私の妹は|隣の子どもが|若い医者は|漁師が|王様は|がくせいたちは|ガイドさんは|誰も|バスの運転手は",
        "毎朝|市場で|ゆっくり|昨日の夜|川のそばで|楽しそうに|学校の前で|雨でも|ときどき|ベンチで",
        "本を読んだ。|リンゴを買った。|歌を歌った！|手紙を書いた。|水を飲んだか？|絵を描いた。|"
        "ﾀﾞﾝｽを踊った。|ご飯を食べた。|花を植えた。|２，５００円を払った。",
    ),
    "turkish": (
        " ",
        "Ilık rüzgâr|İhtiyar balıkçı|Kız kardeşim|Genç öğretmen|Işıl|Komşumuz|Kaptan|Şoför|Çırak|Irmak",
        "sabahları|akşam üstü|yavaşça|İstanbul'da|her gün|dün gece|kıyıda|çarşıda|yağmurda|bazen",
        "kapıyı açtı.|kitabı okudu.|ışığı söndürdü!|süt aldı.|kalın ipi kesti.|kılı kırk yardı.|dağa çıktı.|"
        "3,5 lira verdi.|güldü mü?|halıyı yıkadı.",
    ),
    "greek": (
        " ",
        "Ο ΔΑΣΚΑΛΟΣ|Η αδελφή μου|Ο γέρος ψαράς|Ένας γιατρός|Το παιδί|Ο Οδυσσέας|Η γειτόνισσα|Κανείς|"
        "Ο βασιλιάς|Οι μαθητές",
        "κάθε πρωί|στην αγορά|αργά|χθες το βράδυ|δίπλα στο ποτάμι|με χαρά|πού και πού|στη βροχή|στο σπίτι|ποτέ δεν",
        "διαβάζει ένα βιβλίο.|αγόρασε μήλα.|τραγούδησε!|έγραψε γράμμα.|ήπιε νερό;|ζωγραφίζει.|χόρεψε.|"
        "πλήρωσε 2,50 ευρώ.|φύτεψε λουλούδια.|γέλασε.",
    ),
}


# More languages, with six choices for each part.
_MORE_PHRASES = {
    "traditional-chinese": (
        "",
        "老師|我的妹妹|隔壁的孩子|年輕的醫生|那位漁夫|國王",
        "每天早上|在市場裡|慢慢地|昨天晚上|在河邊|高興地",
        "讀書。|買了三顆蘋果。|唱歌！|寫了一封信。|喝水嗎？|種花。",
    ),
    "thai": (
        "",
        "ครูใหญ่|น้องสาวของฉัน|เด็กข้างบ้าน|หมอหนุ่ม|ชาวประมง|พระราชา",
        "อ่านหนังสือ|ซื้อแอปเปิลสามลูก|ร้องเพลง|เขียนจดหมาย|ดื่มน้ำ|ปลูกดอกไม้",
        "ทุกเช้า|ที่ตลาด|เมื่อวานตอนเย็น|ริมแม่น้ำ|ด้วยความสุข|หน้าโรงเรียน",
    ),
    "khmer": (
        "",
        "គ្រូ|ប្អូនស្រីខ្ញុំ|ក្មេងជិតខាង|គ្រូពេទ្យ|អ្នកនេសាទ|ស្តេច",
        "អានសៀវភៅ|ទិញផ្លែប៉ោមបី|ច្រៀងចម្រៀង|សរសេរសំបុត្រ|ផឹកទឹក|ដាំផ្កា",
        "រាល់ព្រឹក។|នៅផ្សារ។|ម្សិលមិញ។|ក្បែរទន្លេ។|ដោយសប្បាយ។|មុខសាលា។",
    ),
    "arabic": (
        " ",
        "المعلم|أختي الصغيرة|طفل الجيران|الطبيب الشاب|الصياد|الملك",
        "يقرأ كتابا|يشتري ثلاث تفاحات|يغني أغنية|يكتب رسالة|يشرب الماء|يزرع الزهور",
        "كل صباح.|في السوق.|أمس مساء!|قرب النهر.|بفرح؟|أمام المدرسة.",
    ),
    "persian": (
        " ",
        "معلم|خواهر کوچکم|کودک همسایه|پزشک جوان|ماهی\u200cگیر|پادشاه",
        "هر صبح|در بازار|دیشب|کنار رودخانه|با شادی|جلوی مدرسه",
        "کتاب می\u200cخواند.|سه سیب می\u200cخرد.|آواز می\u200cخواند!|"
        "نامه می\u200cنویسد.|آب می\u200cنوشد؟|گل می\u200cکارد.",
    ),
    "hebrew": (
        " ",
        "המורה|אחותי הקטנה|הילד של השכנים|הרופא הצעיר|הדייג|המלך",
        "קורא ספר|קונה שלושה תפוחים|שר שיר|כותב מכתב|שותה מים|שותל פרחים",
        "בכל בוקר.|בשוק.|אתמול בערב!|ליד הנהר.|בשמחה?|מול בית הספר.",
    ),
    "finnish": (
        " ",
        "Opettaja|Pikkusiskoni|Naapurin lapsi|Nuori lääkäri|Vanha kalastaja|Kukaan",
        "lukee kirjaa|ostaa kolme omenaa|laulaa laulun|kirjoittaa kirjettä|juo vettä|istuttaa kukkia",
        "joka aamu.|torilla.|eilen illalla!|joen rannalla.|iloisesti?|koulun edessä.",
    ),
    "amharic": (
        " ",
        "አስተማሪው|ታናሽ እህቴ|የጎረቤት ልጅ|ወጣቱ ሐኪም|ዓሣ አጥማጁ|ንጉሡ",
        "በየቀኑ ጠዋት|በገበያ ውስጥ|ትናንት ማታ|በወንዝ አጠገብ|በደስታ|ከትምህርት ቤት ፊት",
        "መጽሐፍ ያነባል።|ሦስት ፖም ይገዛል።|ዘፈን ይዘፍናል።|ደብዳቤ ይጽፋል።|ውሃ ይጠጣል።|አበባ ይተክላል።",
    ),
}

LANGUAGES = list(_PHRASES)

# The ISO 639 codes of the languages, for `--language`.
LANGUAGE_CODES = {
    "german": "de",
    "finnish": "fi",
    "turkish": "tr",
    "greek": "el",
    "russian": "ru",
    "hebrew": "he",
    "arabic": "ar",
    "persian": "fa",
    "amharic": "am",
    "hindi": "hi",
    "korean": "ko",
    "japanese": "ja",
    "chinese": "zh",
    "traditional-chinese": "zh",
    "thai": "th",
    "khmer": "km",
}


def sentences(language: str) -> list[str]:
    """Return all sentences of a language."""
    space, *parts = (_PHRASES | _MORE_PHRASES)[language]
    return [space.join(chosen) for chosen in product(*(part.split("|") for part in parts))]


def has_spaces(language: str) -> bool:
    """Return True if the language separates words by spaces."""
    return (_PHRASES | _MORE_PHRASES)[language][0] == " "
