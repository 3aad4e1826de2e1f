"""Reported beside measured on one screen: a table of at most eight rows, and its findings in three sentences.

Made of the claims' findings alone (`experiments.claims`), whose judgements are enums: no text is read back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from experiments.claims import Claim, Judged, Place
from experiments.common.findings import Finding, Judgement
from experiments.common.markdown import table as markdown_table
from repro import zoo

CANNOT = (
    "What cannot be said: anything about convergence, as the runs are short and the reward still rises at "
    "their end, or about gradients as rough as the reported cosines, as models of a few million parameters "
    "are far smoother along their trajectories than FLUX."
)


def markdown(judged: Judged) -> str:
    """The table, the sentences, and what cannot be said."""
    return "\n\n".join((table(judged), " ".join(filter(None, sentences(judged))), CANNOT))


def table(judged: Judged) -> str:
    """A row a headline, models side by side; "-" where nothing was measured."""
    rows = [
        (claim.what, claim.reported, *(cell(found, model) for model in zoo.MODELS))
        for claim, found in judged.items()
        if claim.headline
    ]
    return markdown_table(("claim", "reported, of FLUX and Qwen-Image", *zoo.MODELS), rows)


def cell(found: Mapping[Place, Finding], model: str) -> str:
    """What was found on a model, each training recipe's after its name."""
    of_model = {place: finding for place, finding in found.items() if place.model == model}
    texts = [
        f"{place.algorithm}: {finding}" if place.algorithm else str(finding)
        for place, finding in of_model.items()
    ]
    return "; ".join(texts) or "-"


def sentences(judged: Judged) -> tuple[str, str, str]:
    """Three: what agrees or is not contradicted; what disagrees, and why; what is open, or ours alone."""
    headlines = {claim: found for claim, found in judged.items() if claim.headline}
    of = {judgement: _with(headlines, judgement) for judgement in (*Judgement, None)}
    agrees = _joined(
        ("Agrees with what is reported: ", _named(of[Judgement.AGREES], headlines)),
        ("does not contradict it: ", _named(of[Judgement.NOT_CONTRADICTED], headlines)),
    )
    disagrees = _joined(("Disagrees with it: ", _explained(of[Judgement.DISAGREES], headlines)))
    open_ = _joined(
        ("Undecided: ", _named(of[Judgement.UNDECIDED], headlines)),
        ("measured, but not reported: ", _named(of[None], headlines)),
    )
    return agrees, disagrees, open_


def _with(judged: Judged, judgement: Judgement | None) -> dict[Claim, dict[Place, Finding]]:
    """The claims with findings of a judgement, and these findings alone."""
    chosen = {
        claim: {place: finding for place, finding in found.items() if finding.judgement is judgement}
        for claim, found in judged.items()
    }
    return {claim: found for claim, found in chosen.items() if found}


def _joined(*parts: tuple[str, str]) -> str:
    """A sentence of those parts that say something."""
    text = "; ".join(opening + words for opening, words in parts if words)
    return text[:1].upper() + text[1:] + "." if text else ""


def _named(chosen: Judged, judged: Judged) -> str:
    return "; ".join(_name(claim, found, judged) for claim, found in chosen.items())


def _explained(chosen: Judged, judged: Judged) -> str:
    """Each with its reasons, which places may share."""
    reasons = {
        claim: " ".join(dict.fromkeys(finding.why for finding in found.values()))
        for claim, found in chosen.items()
    }
    return "; ".join(
        f"{_name(claim, found, judged)} – {reasons[claim].rstrip('.')}" for claim, found in chosen.items()
    )


def _name(claim: Claim, found: Iterable[Place], judged: Judged) -> str:
    """The claim, and where, unless that is everywhere."""
    places = list(found)
    return str(claim) if len(places) == len(judged[claim]) else f"{claim} ({'; '.join(map(str, places))})"
