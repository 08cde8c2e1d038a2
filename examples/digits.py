"""Train three digits for a minute, then draw twelve eights; run it anywhere."""

import manege
from manege.pictures import grid, save_png

run = manege.train("digits", data__classes=["3", "5", "8"], budget_s=60)
drawn = manege.sample(run.path, 12, label="8", seed=7)
save_png("eights.png", grid(drawn.pictures), {"label": "8"}, scale=8)
