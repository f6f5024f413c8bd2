"""Bundle JavaScript modules into one script: each module becomes a function scope, in the order of imports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import TopologicalSorter

_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


def joined(modules: Mapping[str, str]) -> str:
    r"""Join modules into one script. They import by name from each other and export declarations.

    Example:
        >>> from agentrl_core.view.javascript_bundle import joined
        >>> one, two = "export const one = 1;\n", 'import { one } from "./one.js";\nalert(one);\n'
        >>> print(joined({"two.js": two, "one.js": one}))
        "use strict";
        const one_js = (() => {
        const one = 1;
        return { one };
        })();
        const two_js = (() => {
        const { one } = one_js;
        alert(one);
        return {  };
        })();
    """
    imports = {name: {match[1] for match in _IMPORT.findall(source)} for name, source in modules.items()}
    parts = ['"use strict";']
    for name in TopologicalSorter({name: sorted(imports[name]) for name in sorted(modules)}).static_order():
        source = _IMPORT.sub(lambda match: f"const {{ {match[1]} }} = {_scope(match[2])};\n", modules[name])
        names = [match[1] for match in _EXPORT.findall(source)]
        body = _EXPORT.sub(r"\1", source).rstrip()
        parts.append(f"const {_scope(name)} = (() => {{\n{body}\nreturn {{ {', '.join(names)} }};\n}})();")
    return "\n".join(parts)


def _scope(name: str) -> str:
    return name.replace(".", "_")
