"""Texts that would do harm where they were not shown as text."""

HOSTILE = [
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\x1b[31mred\x07",
    "\u202etxet neddih\u202c",
    "</script><b>bold</b>",
    "שלום",
    "&lt;",
    "\u200binvisible\u2066",
]
