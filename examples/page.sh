#!/usr/bin/env bash
# Draws examples/page.png, the picture in the README, from a result: bash examples/page.sh result.json (needs Chromium)
set -euo pipefail
folder=$(mktemp -d)
autofit report "$1" --output "$folder/page.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=5000 --user-data-dir="$folder/profile" \
    --window-size=1180,1915 --screenshot="$folder/page.png" "$folder/page.html"
python - "$folder/page.png" "$(dirname "$0")/page.png" <<'PYTHON'
import sys

from PIL import Image

Image.open(sys.argv[1]).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(sys.argv[2], optimize=True)
PYTHON
rm -r "$folder"
