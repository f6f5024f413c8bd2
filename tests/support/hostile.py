"""Texts that would do harm if a page did not escape them."""

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
