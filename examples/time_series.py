"""Tomorrow's consumption of electricity, hour by hour, from the last three days: a GRU and the seasonal naive one.

The program makes the series itself: two years of hours with a daily and a weekly season, a slow trend, weather that
lasts for days, and noise. In the naive forecast, tomorrow is the same as the same day of last week (R. Hyndman and G.
Athanasopoulos, "Forecasting: principles and practice", 3rd ed., 2021, section 5.2). The GRU reads the last 72 hours,
one after the other, and gives the next 24. It trains on the time before the last twelve weeks, and is tested on these.

python time_series.py                # trains: some seconds
python time_series.py PICTURE.png    # draws forecasts and errors, too; needs matplotlib
"""

import sys

import numpy as np

import caffelite as cl

DAY, WEEK, YEAR = 24, 7 * 24, 52 * 7 * 24
HOURS, HELD_OUT, READ = 2 * YEAR, 12 * WEEK, 3 * DAY
EPOCHS, BATCH = 12, 32


def consumption(seed):
    """Gigawatts in every hour from a Monday on, (HOURS,)."""
    rng, t = np.random.default_rng(seed), np.arange(HOURS)
    hour, workday = t % DAY, t // DAY % 7 < 5
    morning, evening = (np.exp(-(((hour - peak) / width) ** 2)) for peak, width in ((9, 2.5), (19, 3)))
    season = 8 * np.sin(2 * np.pi * (hour - 8) / DAY) + np.where(workday, 6 * morning + 3, 0) + 5 * evening
    weather = np.zeros(HOURS)  # cold and warm days follow their like: they fade by half in a day and a half
    for i, shock in enumerate(rng.normal(0, 0.75, HOURS - 1), start=1):
        weather[i] = 0.98 * weather[i - 1] + shock
    return 50 + 4 * t / YEAR + season + weather + rng.normal(0, 0.6, HOURS)


def examples(series, first):
    """For each of these hours what was before it (n, READ, 5), the day that begins (n, DAY), and its level (n, 1).

    An hour is its consumption and its places in the day and in the week, points on circles. The level is the mean
    consumption of the hours before. Consumption is in tens of gigawatts above the level, so the trend does not matter.
    """
    read, day = first[:, None] + np.arange(-READ, 0), first[:, None] + np.arange(DAY)
    level = series[read].mean(axis=1, keepdims=True)
    places = [f(2 * np.pi * read / period) for period in (DAY, WEEK) for f in (np.sin, np.cos)]
    return np.stack([(series[read] - level) / 10, *places], axis=2), (series[day] - level) / 10, level


def draw(path, truth, forecasts, errors):
    """Draw a week of forecasts, and how far they are off on average, by how many hours they look ahead."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.6), dpi=160, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    hours = np.arange(WEEK) / DAY
    above.plot(hours, truth[-7:].ravel(), color="black", linewidth=1.2, label="consumption")
    for (name, forecast), color in zip(forecasts.items(), ("C3", "C0"), strict=True):
        above.plot(hours, forecast[-7:].ravel(), color=color, linewidth=1.6, alpha=0.8, label=name)
        below.plot(np.arange(1, DAY + 1), errors[name], color=color, marker="o", markersize=3.5)
        below.annotate(name, (DAY, errors[name][-1]), (6, 0), textcoords="offset points", color=color, va="center")
    above.set(xlim=(0, 7), ylabel="GW", ylim=(39, None))
    above.set_title("The last week, each day forecast at midnight", loc="left", fontsize=11)
    above.set_xticks(np.arange(7) + 0.5, ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
    above.tick_params(axis="x", length=0)
    for midnight in range(1, 7):
        above.axvline(midnight, color="0.85", linewidth=0.8, zorder=0)
    above.legend(loc="lower right", bbox_to_anchor=(1, 1), borderpad=0, ncols=3, frameon=False)
    below.set(xlim=(0.5, DAY + 3), ylim=(0, None), xlabel="hours ahead", ylabel="mean error, GW")
    below.set_xticks([1, 6, 12, 18, 24])
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


series = consumption(seed=0)
x, y, _ = examples(series, np.arange(READ, HOURS - HELD_OUT - DAY, 6))
test = np.arange(HOURS - HELD_OUT, HOURS, DAY)  # midnights
x_test, _, level = examples(series, test)

model = cl.Model([cl.GRU(5, 32), cl.Linear(32, DAY)], seed=0)
print(model.summary((READ, 5)))
rate = cl.schedules.cosine(4e-3, steps=EPOCHS * -(-len(x) // BATCH), warmup=50)
optimizer = cl.Adam(model.parameters(), lr=rate)
history = model.fit(x, y, loss=cl.HuberLoss(0.2), optimizer=optimizer, epochs=EPOCHS, batch_size=BATCH, verbose=0)
print(f"loss in the first epoch {history['loss'][0]:.4f}, in the last {history['loss'][-1]:.4f}")

truth = series[test[:, None] + np.arange(DAY)]
forecasts = {"as a week ago": series[test[:, None] + np.arange(DAY) - WEEK], "GRU": level + 10 * model.predict(x_test)}
errors = {name: abs(forecast - truth).mean(axis=0) for name, forecast in forecasts.items()}
for name, error in errors.items():
    print(f"{name:14} mean error {error.mean():.2f} GW, of the first hour {error[0]:.2f}, of the last {error[-1]:.2f}")

if len(sys.argv) > 1:
    draw(sys.argv[1], truth, forecasts, errors)
