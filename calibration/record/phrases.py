"""The phrases of ``calibration.record.statement`` in the languages that it is written in."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Phrases:
    """One language: pieces of the sentence, with the names of what is filled in.

    Attributes:
        decimal: What stands between units and tenths.
        thousands: What stands between thousands and hundreds.
        percent: A share of 100.
        whole: How the pieces become a sentence.
        candidates: One candidate, several candidates.
    """

    decimal: str
    thousands: str
    percent: str
    whole: str
    photos: str
    listed: str
    traffic: str
    traffic_groups: str
    plants: str
    species: str
    each_holds: str
    holds: str
    candidates: tuple[str, str]
    hits: str
    not_known: str
    guaranteed: str
    not_guaranteed: str
    caution: str
    on_average: str
    for_all_but: str
    no_requests: str
    trained: str
    chose: str
    chose_head: str
    unknown: str
    at_most: str
    at_least: str
    each_class: str
    each_class_but: str
    empty: str


ENGLISH = Phrases(
    decimal=".",
    thousands=",",
    percent="{} %",
    whole="{measured} {held}; {truth}.",
    photos="On photos like the {rows} of the split '{split}',",
    listed="On photos of classes of the list '{name}' like the {rows} of the split '{split}',",
    traffic="On photos like the {rows} of recent traffic,",
    traffic_groups="On requests with {images} photos like the {rows} of recent traffic,",
    plants="On requests like the {rows} groups of {images} photos from the split '{split}', each "
    "of one plant,",
    species="On requests like the {rows} groups of {images} photos from the split '{split}', each "
    "of one species but not of one plant (real requests may do worse),",
    each_holds="each set holds {size} {candidates}",
    holds="a set holds {size} {candidates} on average ({low} to {high} at 95 % confidence)",
    candidates=("candidate", "candidates"),
    hits="{share} of the sets hold the right one ({low} to {high})",
    not_known="how many sets hold the right one is not known",
    guaranteed="This is guaranteed on such photos, {which}: {wanted}.",
    not_guaranteed="This was asked for, but is no guarantee, since {why}: {wanted}.",
    caution="New photos may do worse, since {why}.",
    on_average="on average over calibrations",
    for_all_but="for all but {delta} of calibrations on independent photos",
    no_requests="there were no such requests to calibrate on",
    trained="{photos} of the photos also trained the network",
    chose="{photos} of the photos also chose the network",
    chose_head="the photos also chose its head and kind of score",
    unknown="nothing tells which photos trained and chose the network",
    at_most="at most {k} {candidates} on average, and never more than {most}",
    at_least="at least {coverage} of the sets hold the right one",
    each_class=", for each class",
    each_class_but=", for each class but the {small} with too few photos",
    empty="This set is empty and does not hold the right one.",
)

FRENCH = Phrases(
    decimal=",",
    thousands="\u202f",
    percent="{}\u00a0%",
    whole="{measured} {held}\u00a0; {truth}.",
    photos="Sur des photos comme les {rows} de la partie «\u00a0{split}\u00a0»,",
    listed="Sur des photos d'espèces de la liste «\u00a0{name}\u00a0» comme les {rows} de la "
    "partie «\u00a0{split}\u00a0»,",
    traffic="Sur des photos comme les {rows} des requêtes récentes,",
    traffic_groups="Sur des requêtes de {images} photos comme les {rows} reçues récemment,",
    plants="Sur des requêtes comme les {rows} groupes de {images} photos de la partie "
    "«\u00a0{split}\u00a0», chacun d'une seule plante,",
    species="Sur des requêtes comme les {rows} groupes de {images} photos de la partie "
    "«\u00a0{split}\u00a0», chacun d'une seule espèce mais pas d'une seule plante (de vraies "
    "requêtes peuvent donner moins bien),",
    each_holds="chaque sélection contient {size} {candidates}",
    holds="une sélection contient en moyenne {size} {candidates} (de {low} à {high} avec une "
    "confiance de 95\u00a0%)",
    candidates=("candidat", "candidats"),
    hits="{share} des sélections contiennent le bon (de {low} à {high})",
    not_known="on ne sait pas combien de sélections contiennent le bon",
    guaranteed="C'est garanti sur de telles photos, {which}\u00a0: {wanted}.",
    not_guaranteed="C'était demandé, mais ce n'est pas une garantie, car {why}\u00a0: {wanted}.",
    caution="De nouvelles photos peuvent donner moins bien, car {why}.",
    on_average="en moyenne sur les calibrations",
    for_all_but="pour toutes les calibrations sur des photos indépendantes sauf {delta}",
    no_requests="il n'y avait pas de telles requêtes pour calibrer",
    trained="{photos} de ces photos ont aussi servi à entraîner le réseau",
    chose="{photos} de ces photos ont aussi servi à choisir le réseau",
    chose_head="ces photos ont aussi servi à choisir sa tête et son type de score",
    unknown="rien ne dit quelles photos ont servi à entraîner et à choisir le réseau",
    at_most="au plus {k} {candidates} en moyenne, et jamais plus de {most}",
    at_least="au moins {coverage} des sélections contiennent le bon",
    each_class=", pour chaque classe",
    each_class_but=", pour chaque classe sauf les {small} qui ont trop peu de photos",
    empty="Cette sélection est vide et ne contient pas le bon.",
)

GERMAN = Phrases(
    decimal=",",
    thousands=".",
    percent="{}\u00a0%",
    whole="{measured} {held}; {truth}.",
    photos="Bei Fotos wie den {rows} des Teils „{split}“",
    listed="Bei Fotos von Arten der Liste „{name}“ wie den {rows} des Teils „{split}“",
    traffic="Bei Fotos wie den {rows} aus jüngsten Anfragen",
    traffic_groups="Bei Anfragen mit {images} Fotos wie den {rows} jüngsten",
    plants="Bei Anfragen wie den {rows} Gruppen von {images} Fotos aus dem Teil „{split}“, jede "
    "von einer Pflanze,",
    species="Bei Anfragen wie den {rows} Gruppen von {images} Fotos aus dem Teil „{split}“, jede "
    "von einer Art, aber nicht von einer Pflanze (echte Anfragen können schlechter abschneiden),",
    each_holds="enthält jede Auswahl {size} {candidates}",
    holds="enthält eine Auswahl im Mittel {size} {candidates} ({low} bis {high} bei 95\u00a0% "
    "Konfidenz)",
    candidates=("Kandidaten", "Kandidaten"),
    hits="{share} der Auswahlen enthalten den richtigen ({low} bis {high})",
    not_known="wie viele Auswahlen den richtigen enthalten, ist nicht bekannt",
    guaranteed="Dies ist bei solchen Fotos garantiert, {which}: {wanted}.",
    not_guaranteed="Dies war verlangt, ist aber nicht garantiert, denn {why}: {wanted}.",
    caution="Neue Fotos können schlechter abschneiden, denn {why}.",
    on_average="im Mittel über Kalibrierungen",
    for_all_but="für alle Kalibrierungen auf unabhängigen Fotos bis auf {delta}",
    no_requests="zum Kalibrieren gab es keine solchen Anfragen",
    trained="mit {photos} dieser Fotos wurde das Netz auch trainiert",
    chose="mit {photos} dieser Fotos wurde das Netz auch ausgewählt",
    chose_head="mit diesen Fotos wurden auch Ausgang und Art der Werte ausgewählt",
    unknown="es ist nicht bekannt, mit welchen Fotos das Netz trainiert und ausgewählt wurde",
    at_most="im Mittel höchstens {k} {candidates} und nie mehr als {most}",
    at_least="mindestens {coverage} der Auswahlen enthalten den richtigen",
    each_class=", für jede Klasse",
    each_class_but=", für jede Klasse außer den {small} mit zu wenigen Fotos",
    empty="Diese Auswahl ist leer und enthält den richtigen nicht.",
)

SPANISH = Phrases(
    decimal=",",
    thousands="\u202f",
    percent="{}\u00a0%",
    whole="{measured} {held}; {truth}.",
    photos="En fotos como las {rows} de la parte «{split}»,",
    listed="En fotos de especies de la lista «{name}» como las {rows} de la parte «{split}»,",
    traffic="En fotos como las {rows} de las peticiones recientes,",
    traffic_groups="En peticiones de {images} fotos como las {rows} recientes,",
    plants="En peticiones como los {rows} grupos de {images} fotos de la parte «{split}», cada "
    "uno de una sola planta,",
    species="En peticiones como los {rows} grupos de {images} fotos de la parte «{split}», cada "
    "uno de una sola especie pero no de una sola planta (las peticiones reales pueden ir peor),",
    each_holds="cada selección contiene {size} {candidates}",
    holds="una selección contiene de media {size} {candidates} (de {low} a {high} con una "
    "confianza del 95\u00a0%)",
    candidates=("candidato", "candidatos"),
    hits="el {share} de las selecciones contiene el correcto (del {low} al {high})",
    not_known="no se sabe cuántas selecciones contienen el correcto",
    guaranteed="Esto está garantizado en fotos así, {which}: {wanted}.",
    not_guaranteed="Esto se pidió, pero no es una garantía, pues {why}: {wanted}.",
    caution="Con fotos nuevas puede ir peor, pues {why}.",
    on_average="en promedio sobre las calibraciones",
    for_all_but="en todas las calibraciones con fotos independientes salvo el {delta}",
    no_requests="no había peticiones así con las que calibrar",
    trained="{photos} de esas fotos sirvieron también para entrenar la red",
    chose="{photos} de esas fotos sirvieron también para elegir la red",
    chose_head="esas fotos sirvieron también para elegir la salida y el tipo de puntuación",
    unknown="no se sabe qué fotos sirvieron para entrenar y elegir la red",
    at_most="como mucho {k} {candidates} de media, y nunca más de {most}",
    at_least="al menos el {coverage} de las selecciones contiene el correcto",
    each_class=", para cada clase",
    each_class_but=", para cada clase salvo las {small} con muy pocas fotos",
    empty="Esta selección está vacía y no contiene el correcto.",
)

PHRASES = {"en": ENGLISH, "fr": FRENCH, "de": GERMAN, "es": SPANISH}
"""By language code."""
