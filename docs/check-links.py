"""Checks that every link of the book leads to a page, a file or a heading in it. Usage: check-links.py FOLDER"""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = set(), {""}
        self.feed(text)

    def handle_starttag(self, _tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.add(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


def main(folder):
    folder = pathlib.Path(folder).resolve()
    # print.html repeats all pages, and 404.html is served for any path.
    files = [file for file in folder.rglob("*.html") if file.name not in ("print.html", "404.html", "toc.html")]
    pages = {file: Page(file.read_text()) for file in files}
    broken = []
    for file, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = urllib.parse.unquote(parts.path)
            target = (file.parent / path).resolve() if path else file
            anchors = pages[target].anchors if target in pages else None
            if not target.is_file() or (anchors is not None and parts.fragment not in anchors):
                broken.append(f"{file.relative_to(folder)}: {link}")
    for line in sorted(broken):
        print(line)
    print(f"check-links: {len(pages)} pages, {len(broken)} broken links")
    return 1 if broken or not pages else 0


sys.exit(main(sys.argv[1]))
