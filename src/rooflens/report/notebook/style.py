"""The style sheet of results in notebooks: colours for light and dark, plain tables, one of two pictures."""

from __future__ import annotations

# How notebooks say that they are dark: JupyterLab and Notebook 7, VS Code, Colab, marimo.
_DARK = (
    '[data-jp-theme-light="false"]', ".vscode-dark", ".vscode-high-contrast", 'html[theme="dark"]', ".dark",
)  # fmt: skip

_LIGHT_COLORS = "--rl-good:#00684a;--rl-bad:#b3261e;--rl-key:#005b8f;--rl-rest:#8a5a00;--rl-line:#d0d7de"
_DARK_COLORS = "--rl-good:#3dd6a0;--rl-bad:#ff8a7a;--rl-key:#7cc7f0;--rl-rest:#f0b030;--rl-line:#3a424d"

_RULES = """
.rooflens{font-size:13px;line-height:1.5;max-width:880px;overflow-wrap:anywhere}
.rooflens .rl-head{font-weight:650;margin:.9em 0 .3em}
.rooflens .rl-head:first-child{margin-top:0;font-size:15px}
.rooflens .rl-strong{font-weight:650}
.rooflens .rl-quiet{opacity:.72;font-weight:400}
.rooflens .rl-good{color:var(--rl-good)}
.rooflens .rl-bad{color:var(--rl-bad)}
.rooflens .rl-key{color:var(--rl-key)}
.rooflens .rl-rest{color:var(--rl-rest)}
.rooflens .rl-scroll{overflow-x:auto}
.rooflens table{border-collapse:collapse;margin:.2em 0;font-size:inherit;border:0;color:inherit}
.rooflens :is(thead,tbody) tr{background:none;border:0}
.rooflens :is(th,td){padding:2px 14px 2px 0;text-align:left;vertical-align:top;border:0;white-space:normal;
max-width:none;color:inherit}
.rooflens :is(th,td):is(.rl-good,.rl-bad,.rl-key,.rl-rest){color:var(--rl-key)}
.rooflens thead th{font-weight:600;border-bottom:1px solid var(--rl-line);white-space:nowrap}
.rooflens .rl-number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.rooflens .rl-bar{display:inline-block;height:.75em;background:currentColor;border-radius:2px;
vertical-align:baseline;min-width:1px}
.rooflens img{display:block;max-width:100%;height:auto;margin:10px 0;border-radius:6px}
.rooflens .rl-night{display:none}
"""


def style_sheet() -> str:
    """The style element that stands with every result: notebooks may show each on its own."""
    dark = ",".join(f"{place} .rooflens" for place in _DARK)
    day = ",".join(f"{place} .rooflens .rl-day.rl-auto" for place in _DARK)
    night = ",".join(f"{place} .rooflens .rl-night.rl-auto" for place in _DARK)
    return (
        f"<style>.rooflens{{{_LIGHT_COLORS}}}{dark}{{{_DARK_COLORS}}}{_RULES}"
        f"{day}{{display:none}}{night}{{display:block}}</style>"
    )
