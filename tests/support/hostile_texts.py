"""Texts that would run a script, or request something, if the page took them as markup or as an address."""

from __future__ import annotations

RUN = "window.wasRun=1"
_TAGS = (
    "<script>{0}</script>",
    "<img src=x onerror={0}>",
    "<svg onload={0}>",
    "<svg><script>{0}</script></svg>",
    "<iframe srcdoc='<script>parent.{0}</script>'></iframe>",
    "<iframe src='javascript:parent.{0}'></iframe>",
    "<body onload={0}>",
    "<details open ontoggle={0}>x</details>",
    "<video><source onerror={0}></video>",
    "<a href='javascript:{0}'>x</a>",
    "<form action='javascript:{0}'><button>x</button></form>",
    "<math><mtext><img src=x onerror={0}></mtext></math>",
    "<style>*{{background:url(https://evil.example/x)}}</style>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<object data='data:text/html,<script>{0}</script>'></object>",
    "<embed src='data:text/html,<script>{0}</script>'>",
    "<base href=https://evil.example/>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<input autofocus onfocus={0}>",
    "<template><script>{0}</script></template>",
    "<noscript><p title='</noscript><img src=x onerror={0}>'></noscript>",
)
_FRAMES = ("{0}", '"{0}', "'>{0}", "-->{0}", "</title></textarea></pre>{0}")
_MARKDOWN = (
    "[x](javascript:{0})",
    "[x](JaVaScRiPt:{0})",
    "[x](\tjavascript:{0})",
    "[x](data:text/html,<script>{0}</script>)",
    "[x](vbscript:{0})",
    "![x](https://evil.example/x.png)",
    "![x](javascript:{0})",
    "![x](x 'onerror={0}')",
    "<javascript:{0}>",
    "[x]: javascript:{0}\n\n[x]",
    "```html\n<script>{0}</script>\n```",
    "`<img src=x onerror={0}>`",
    "| <img src=x onerror={0}> |\n|---|\n| <script>{0}</script> |",
    "# <img src=x onerror={0}>",
    "- [ ] <svg onload={0}>",
    "[[S:1]]<img src=x onerror={0}>",
    "ar:turn_1.<img/src=x/onerror={0}>",
    "__proto__",
    "constructor",
    "\u202e<script>{0}</script>",
)
TEXTS: tuple[str, ...] = (
    *(frame.format(tag.format(RUN)) for tag in _TAGS for frame in _FRAMES),
    *(text.format(RUN) for text in _MARKDOWN),
)
