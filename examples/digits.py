"""Train three digits for a minute, then draw twelve eights; run it anywhere."""

import manege

run = manege.train("digits", classes=["3", "5", "8"], budget="1m", workers=2)
run.sample(12, label="8", seed=7).save("eights.png")
