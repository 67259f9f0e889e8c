"""Everything that the planner page shows for one case, in one answer: plan, sweep, roofs and sentences.

A slider asks with every move, so what takes long (advice, what would make it fit) is a question of its own.
"""

from __future__ import annotations

from typing import Any

from rooflens import api
from rooflens.analysis.estimate import setting_for
from rooflens.analysis.plan import Plan
from rooflens.analysis.points import roofline_view
from rooflens.analysis.techniques import evaluate, scenario_of
from rooflens.errors import RooflensError
from rooflens.report.tables.plan import (
    fit,
    remedy,
    ridge_sentence,
    room_sentence,
    speed_sentence,
    split_sentence,
)
from rooflens.report.tables.sweep import knee_sentence
from rooflens.report.words import Words, words
from rooflens.report.words_advice import advice_words, reason
from rooflens.web.bodies import AdviceBody, ViewBody
from rooflens.web.settings import WebSettings
from rooflens.web.sources import device_of, named_device, plan_settings, required_model

Document = dict[str, Any]

_OWN_FIELDS = ("compare_devices", "sweep_axis", "sweep_values", "lang")


def view_answer(body: ViewBody, settings: WebSettings) -> Document:
    """The document of one case. ``plan`` is that of /api/plan, its advice and remedies left empty."""
    model, device = required_model(body, settings), device_of(body, settings)
    asked = plan_settings(body, without=_OWN_FIELDS)
    plan = without_advice(api.plan(model, device, **asked, remedies=False))
    axes = {name: asked[name] for name in ("batch", "context") if name in asked}
    axes[body.sweep_axis] = body.sweep_values
    sweep = api.sweep(model, device, **(asked | axes))
    say = words(body.lang)
    return {
        "schema": "rooflens.view/1",
        "plan": plan.to_dict(),
        "sweep": sweep.to_dict(),
        "roofs": [
            {"name": device.name, **roofline_view(device, plans=[plan]).to_dict()},
            *(_other(name, model, asked, settings) for name in body.compare_devices),
        ],
        "sentences": _sentences(plan, say) | {"knee": knee_sentence(sweep, say)},
        "setting": _setting(plan),
    }


def _setting(plan: Plan) -> Document:
    """What the estimate is made with: shares that kernels reach, seconds per launch and step, and whence."""
    setting = setting_for(plan.spec, plan.device, plan.workload.engine)
    return {
        "kernels": {name: float(value) for name, value in vars(setting.kernels).items()},
        "engine": {name: float(value) for name, value in vars(setting.engine).items()},
        "source": setting.source,
    }


def without_advice(plan: Plan) -> Plan:
    """The plan with its advice taken as empty, so that nobody works it out."""
    vars(plan)["advice"] = ()
    return plan


def _other(name: str, model: Any, asked: Document, settings: WebSettings) -> Document:
    """A further device's roof and points, or the reason why it has none."""
    try:
        device = named_device(name, settings)
        plan = api.plan(model, device, **asked, remedies=False)
    except RooflensError as error:
        return {"name": name, "device": name, "points": [], **error.to_dict()}
    return {
        "name": device.name,
        **roofline_view(device, plans=[plan]).to_dict(),
        "fits": plan.fits,
        "decode_bound_s": plan.decode.bound_s,
        "prefill_bound_s": plan.prefill.bound_s,
    }


def _sentences(plan: Plan, say: Words) -> dict[str, str]:
    return {
        "verdict": fit(plan, say).plain,
        "speed": speed_sentence(plan, say),
        "room": room_sentence(plan.ledger, say, sequence_tokens=plan.workload.context),
        "split": split_sentence(plan, say),
        "ridge": ridge_sentence(plan, say),
    }


def _now(plan: Plan) -> Document:
    """What the gains of the advice are measured against: the case itself in steady service."""
    outcome = evaluate(scenario_of(plan), plan)
    return {
        "tokens_per_s": float(outcome.tokens_per_s),
        "ttft_s": float(outcome.ttft_s),
        "memory_bytes": int(outcome.memory_bytes),
    }


def advice_answer(body: AdviceBody, settings: WebSettings) -> Document:
    """What would help and, where it does not fit, what would make it fit; in the language asked for."""
    model, device = required_model(body, settings), device_of(body, settings)
    plan = api.plan(model, device, **plan_settings(body, without=("lang",)))
    say = words(body.lang)
    told = advice_words(say)
    return {
        "schema": "rooflens.advice/1",
        "remedy": remedy(plan, say) if plan.fits is False else None,
        "now": _now(plan),
        "advice": [
            {
                **one.to_dict(),
                "name": told(one.technique),
                "reason": reason(one, told),
                "gains": one.gains,
            }
            for one in plan.advice
        ],
    }
