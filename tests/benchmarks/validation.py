"""The validation page: what autofit claims, with the command, the date, the machine, the figures, and the misses by name.

    python tests/benchmarks/validation.py    write README.md of this folder

Each claim reads the frozen output of its benchmark; `test_benchmarks.py` compares the outputs and the page.
"""

import pathlib
import re
import statistics
import textwrap

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "README.md"
MACHINE = "AMD EPYC, 2 cores, no GPU"
HEAD = """# What autofit claims, and how often it is wrong

This page is written by `python tests/benchmarks/validation.py` from the frozen outputs in this folder, and a test compares
both. Each benchmark describes at its top its method, and how it measures again. Figures are ratios measured side by side in
one run. `autofit verify` shows how far autofit's figures are right on *your* machine.

One GPU has been measured, for half an hour: an H200 on JAX and torch ([h200.txt](h200.txt)). Peaks, estimates, limits,
kills and out-of-memory trials were right there, and tunes of 60 to 90 seconds chose what runs at 92 to 100 % of the best
rate, but could not confirm it. What else is said of GPUs comes from compiling for them and from others' figures.

"""


def found(pattern, text):
    """The groups of the first match; an error if there is none, since the output has another form now."""
    match = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    if match is None:
        raise SystemExit(f"no output matches {pattern!r}")
    return match.groups()


def rows(pattern, text):
    """The groups of all matches, at least one."""
    return re.findall(pattern, text, re.MULTILINE) or found(pattern, text)


def search(text):
    line = r"^{} +{} +([\d.]+)% +([\d.]+)% +([\d.]+) +([\d.]+) +\d+$"
    others = [("autofit", 8), ("TPE", 8), ("TPE", 30), ("GP", 30), ("doubling, bisecting", 30)]
    table = ["| | trials | median | 90th percentile | out of memory, a tune |", "| --- | --- | --- | --- | --- |"]
    figures = [found(line.format(re.escape(name), given), text) for name, given in others]
    for (name, _), (median, most, ooms, trials) in zip(others, figures, strict=True):
        table.append(f"| {name} | {float(trials):.0f} | {median} % | {most} % | {ooms} |")
    groups = rows(r"^  (\w.*?) +(?:held back|developed on) +([\d.]+)% ", text)
    misses = [f"{name}: {regret} % in the mean of five seeds" for name, regret in groups if float(regret) > 5]
    said = (
        "On 100 simulated machines and 4 jobs measured on a real one, the choice after eight trials is "
        f"{figures[0][0]} % below the best configuration that fits, in the median; that of Optuna's TPE with "
        f"constraints {figures[1][0]} %."
    )
    return "\n\n".join((said, "\n".join(table))), misses


def curves(text):
    part = text[text.index("real curves, the usual grid:") :]
    names = ("autofit", "TPE", "GP", "doubling, bisecting")
    figures = {name: found(rf"^  {name} +([\d.]+)% +[\d.]+% +[\d.]+% +(\d+)% +([\d.]+)", part) for name in names}
    mean, over, ooms = figures.pop("autofit")
    rest = "; ".join(f"{name} {other[0]} and {other[1]} %" for name, other in figures.items())
    return (
        "On 40 throughput curves of GPUs that others measured (Zeus, Gavel), with sizes between the measured ones "
        f"interpolated, eight trials and three seeds: {mean} % below the best in the mean, more than 5 % below in {over} "
        f"%, {ooms} out-of-memory trials a tune. Others: {rest}. The memory of these jobs was not published and is "
        "assumed."
    ), []


def confirmation(text):
    wrong, covers = found(r'wrong "faster", at most: ([\d.]+)%; intervals that cover: ([\d.]+)% or more', text)
    (at_ten,) = found(r"^normal +10%(?: +\S+ +\S+ +\S+){3} +(\S+)%", text)
    weak = rows(r"^(normal|configs x 3|heavy tails|wandering) +30%(?: +\S+ +\S+ +\S+){4} +(\S+)%", text)
    lines = [re.findall(r"([\d.]+)%", line) for line in text.split("whole decisions")[1].splitlines()]
    whole = [float(share) for numbers in lines for share in numbers[1::2]]  # the first is the noise
    return (
        f"In simulations with noise of 1 to 30 %, a configuration that is not faster is called faster in at most {wrong} % "
        f"of cases, and the stated interval covers the true ratio in at least {covers} %. With 10 % of normal noise, a "
        f"gain of 1.25x is shown in {at_ten} % of cases. Where nothing is faster, a tune with both answers and up to three "
        f"candidates for each calls anything faster in {statistics.fmean(whole):.1f} % of cases in the mean, {max(whole)} "
        "% at most."
    ), [f"{kind} noise of 30 %: a gain of 1.5x is shown in only {share} % of cases" for kind, share in weak]


def public_tunes(text):
    count, middle, lowest, share, most = found(
        r"(\d+) tunes: of the best, median ([\d.]+), lowest ([\d.]+); .*?median ([\d.]+), highest ([\d.]+)", text
    )
    line = r"^  fastest +(batch .*?)  +([\d.]+) \(.*? +(?:none shown|([\d.]+) \()"
    answers = [(part.partition(":")[0], *row) for part in text.split("\n\n")[1:-1] for row in rows(line, part)]
    shown = sorted(gain for *_, gain in answers if gain)
    note = text.splitlines()[1]  # on the age of the figures
    return (
        f"{count} tunes of five public programs (two convnets, a transformer, an LSTM, a 3-D net on files) took "
        f"{100 * float(share):.0f} % (median) to {100 * float(most):.0f} % of the seconds of 15 plain fits. Their "
        f"choices reached {middle} of the best configuration of an exhaustive grid in the median, {lowest} at least. "
        f"{len(shown)} state a gain over the program's own batch size, of {shown[0]}x to {shown[-1]}x; "
        f"{len(answers) - len(shown)} show none.{f' {note}.' if note else ''}"
    ), [
        f"{job}: chose {own}, at {of_best} of the best"
        for job, own, of_best, _ in dict.fromkeys(answers)
        if float(of_best) < 0.93
    ]


def beside(text):
    machine, table = text.split("\n\n", 1)
    return (
        "One public program, the digits on Keras with torch, in processes that may take 1 GiB beside what they have, so "
        "that the largest batches run out of memory. Each tool ran once, as its documentation shows; another time it may "
        "choose otherwise. The last column is the rate of its choice in plain `fit`, of the best choice's. Ultralytics and "
        f"batchtune need a GPU; what stands for them is what they print without one. {machine}.\n\n{table.rstrip()}"
    ), []


def inputs(text):
    every = rows(r"^(\w.*? GiB.*?)  +[\d,]+ MiB +([-+\d.]+)% +([-+\d.]+)% +([-+\d.]+)%", text)
    held = [row for row in every if not row[0].startswith(("batches", "generated"))]
    errors = [max(abs(float(row[column])) for row in held) for column in (1, 2, 3)]
    return (
        f"Peak host memory of data held in memory against a plain `fit`: trials within {errors[0]} %, confirming runs "
        f"within {errors[1]} %, estimates within {errors[2]} %."
    ), [
        f"{row[0]}, made batch by batch: {row[1]} % in a trial, {row[2]} % in a confirming run"
        for row in every
        if row not in held
    ]


def memory(text):
    line = r"^ +(\S.*?) +n +\d+ +median +([\d.]+)% +90 % within +([\d.]+)% +worst +([\d.]+)%"
    errors = {name: figures for name, *figures in rows(line, text)}
    plain, xla = errors.pop("without XLA"), errors.pop("with XLA", None)
    largest = found(r"right (\d+), too small (\d+), by 4 times \(median\), too large (\d+)", text)
    also = f"; with XLA {xla[0]} %, at most {xla[2]} %" if xla else ""
    return (
        f"Device memory estimated without a run, nine models: median error {plain[0]} %, 90 % within {plain[1]} %, at "
        f"most {plain[2]} %{also}. The largest batch predicted to fit under 100 random limits: right {largest[0]} times, "
        f"too small {largest[1]} (by 4 times in the median), too large {largest[2]}."
    ), [f"{name}: up to {worst} %" for name, (*_, worst) in errors.items() if float(worst) > 20]


def published_gpus(text):
    points = rows(r"^(\S+) +(\d+)  measured +([\d.]+) GiB +estimated +([\d.]+) GiB +([-+\d]+)%", text)
    reports = rows(r"^([\w-]+(?:, SiLU)?) +(\w+) +([\w-]+) +(\d+)  (trains|OOM)", text)
    trains = sum(report[4] == "trains" for report in reports)
    errors = [int(point[4]) for point in points]
    near, worst = sum(abs(error) <= 10 for error in errors), max(errors, key=abs)
    failed, right = found(r"Of the (\w+) that ran out of memory, (\w+) do not", text)
    (wrong,) = found(r"The misses are (.*?)\. Those", text)
    return (
        f"Memory of {len(points)} gradients that others measured on an A100: {near} estimates within 10 %, the worst by "
        f"{worst} %. All {trains} batch sizes that others trained with on four GPUs are expected to fit in JAX's share. "
        f"Of {failed} that ran out of memory, in programs older than Keras's, {right} are expected not to fit."
    ), [
        *(f"{model} at batch {batch}: {by} % of {size} GiB" for model, batch, size, _, by in points if abs(int(by)) > 10),
        f"ran out of memory and said to fit: {' '.join(wrong.split())}",
    ]


def backend_rates(text):
    every = rows(r"^(.*?)  +(tensorflow|jax|torch) .*? ([\d.]+) \(([\d.]+) to ([\d.]+)\)", text)
    middle = statistics.median(float(row[2]) for row in every)
    outside = [row for row in every if not float(row[3]) <= 1 <= float(row[4])]
    return (
        f"The rate that a trial states over that of a plain `fit` in a process of its own: {middle:.2f} in the median of "
        f"{len(every)} jobs; the interval contains 1 in {len(every) - len(outside)}."
    ), [f"{name} on {backend}: {ratio} ({low} to {high})" for name, backend, ratio, low, high in outside]


# the title, the function of the figures, the output, the day
CLAIMS = (
    ("The search finds the best configuration in few trials", search, "search", "2026-11-27"),
    ("The same on curves of real GPUs", curves, "search", "2026-11-27"),
    ("Tunes of public programs", public_tunes, "public_tunes", "2026-11-28"),
    ("Beside other tools", beside, "beside", "2026-11-28"),
    ("A gain that is stated is one", confirmation, "confirmation", "2026-11-27"),
    ("Trials state the rate of a plain fit", backend_rates, "backend_rates", "2026-11-28"),
    ("Host memory", inputs, "inputs", "2026-11-22"),
    ("Device memory, TensorFlow", memory, "memory", "2026-11-27"),
    ("Device memory, TensorFlow with oneDNN's kernels", memory, "memory-onednn", "2026-11-27"),
    ("Memory on GPUs that are not there", published_gpus, "published_gpus", "2026-11-25"),
)


def written():
    parts = [HEAD]
    for title, figures, output, day in CLAIMS:
        said, misses = figures((HERE / f"{output}.txt").read_text())
        source = f"`python tests/benchmarks/{output.partition('-')[0]}.py`, [{output}.txt]({output}.txt); {day}; {MACHINE}."
        parts.append(f"## {title}\n\n{wrapped(source)}\n\n{wrapped(said)}\n\n")
        if misses:
            parts.append("Misses:\n\n" + "".join(f"{wrapped(f'- {miss}', '  ')}\n" for miss in misses) + "\n")
    return "".join(parts).rstrip("\n") + "\n"


def wrapped(text, indent=""):
    """Paragraphs in lines as long as those of the project's documents; tables stay as they are."""
    fill = textwrap.TextWrapper(140, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).fill
    return "\n\n".join(part if part.startswith("|") else fill(part) for part in text.split("\n\n"))


if __name__ == "__main__":
    PAGE.write_text(written())
