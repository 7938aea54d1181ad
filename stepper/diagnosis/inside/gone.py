"""What took the place of names and parameters that libraries no longer have, where none that is left is alike."""

from __future__ import annotations

REPLACED = {
    "pandas": {
        "append": "pd.concat([first, second])", "ix": ".loc[] or .iloc[]", "applymap": ".map()", "np": "import numpy",
        "as_matrix": ".to_numpy()", "lookup": ".loc[] or .at[]", "get_value": ".at[]", "set_value": ".at[]",
        "mad": "(x - x.mean()).abs().mean()", "datetime": "import datetime", "Panel": "a frame with a MultiIndex",
        "weekofyear": ".isocalendar().week", "week": ".isocalendar().week", "weekday_name": ".day_name()",
        "rolling_mean": ".rolling(n).mean()", "error_bad_lines": "on_bad_lines='skip'", "date_parser": "date_format",
        "delim_whitespace": r"sep=r'\s+'", "method": ".ffill() or .bfill()", "squeeze": ".squeeze('columns')",
    },
    "numpy": {
        "append": "np.append(array, values), which makes a new array",
        "alltrue": "np.all", "sometrue": "np.any", "in1d": "np.isin", "row_stack": "np.vstack", "asscalar": ".item()",
    },
    "sklearn": {
        "squared": "root_mean_squared_error", "affinity": "metric", "get_feature_names": ".get_feature_names_out()",
    },
    "matplotlib": {
        "get_cmap": "matplotlib.colormaps[name]", "normed": "density", "axisbg": "facecolor",
        "set_axis_bgcolor": ".set_facecolor()", "set_color_cycle": ".set_prop_cycle()", "hold": "nothing: axes hold",
    },
    "seaborn": {"distplot": "histplot or displot", "factorplot": "catplot", "tsplot": "lineplot"},
    "time": {"clock": "time.perf_counter()"},
    "builtins": {"decode": "nothing: a str is decoded already", "has_key": "`key in d`"},
}  # fmt: skip


def replaced(module: str, name: str) -> str:
    """What is written now for a name of a package that it lacks; '' where that is not known."""
    instead = REPLACED.get(module.split(".", maxsplit=1)[0], {}).get(name)
    return f"in place of `{name}` there is now {instead}" if instead else ""
