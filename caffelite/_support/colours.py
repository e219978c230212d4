"""The colours of pictures."""

# M. Okabe and K. Ito, "Color Universal Design", 2008: colours that stay apart for colour-blind readers.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
INK = "#333333"  # text and outlines
FAINT = "#DDDDDD"  # grid lines
