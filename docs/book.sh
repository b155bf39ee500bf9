#!/bin/bash
# Builds the book: the pages of docs, and the files of the repository to which they link. Usage: docs/book.sh MDBOOK
set -euo pipefail
cd "$(dirname "$0")/.."
source=target/book-source
rm -rf "$source" target/book
mkdir -p "$source"
cp -r docs/. "$source"
rm "$source"/*.py "$source"/*.sh
cp -r CONTRIBUTING.md SECURITY.md SUPPORT.md CODE_OF_CONDUCT.md CHANGELOG.md LICENSE conf "$source"
# In the book these files are in one folder with the pages.
sed -i 's#](\.\./#](#g' "$source"/*.md
sed -i 's#](\.\./\.\./#](../#g' "$source"/decisions/*.md
sed -i 's#](docs/#](#g' "$source"/{CONTRIBUTING,SECURITY,SUPPORT,CODE_OF_CONDUCT,CHANGELOG}.md
cat >> "$source/SUMMARY.md" <<'PAGES'

# Repository

- [Contributing](CONTRIBUTING.md)
- [Support](SUPPORT.md)
- [Security policy](SECURITY.md)
- [Code of conduct](CODE_OF_CONDUCT.md)
- [Changelog](CHANGELOG.md)
PAGES
"$1" build "$source" --dest-dir "$PWD/target/book"
python3 docs/check-links.py target/book
