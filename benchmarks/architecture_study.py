"""The published study of architectures on all of Fashion-MNIST, as far as a budget carries.

python benchmarks/architecture_study.py --data DIR --keep DIR --to DIR [--epochs 10] [--minutes 40]

`--keep` has the checkpoints: the same command goes on where it was stopped, after each epoch of
each network. The result is that of `nas-evidence reproduce immer_architectures --full`, with the
epochs and the networks that the budget carried; `python benchmarks/gallery.py DIR` takes it in.
The gallery has 13 networks of 60 epochs, results/architecture_study_250_cpu.json nine of all 250.
"""

import argparse
from pathlib import Path

import torch

from nas_evidence.cli.reproduce import make_importable, scripts_folder
from nas_evidence.plumbing.files import write_whole

make_importable(scripts_folder())

from nas_evidence_reproduce._published import reproduced, result_text, table_page  # noqa: E402


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--data", "--keep", "--to"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=40.0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    options = {"epochs": asked.epochs, "minutes": asked.minutes, "keep": asked.keep}
    found = reproduced(
        "immer_architectures", quick=False, data=asked.data, to=asked.to,
        say=lambda text: print(text, flush=True), options=options,
    )  # fmt: skip
    # Of all calls, not of the last one.
    found["processor_seconds"] = round(sum(one[-1] for one in found["numbers"]["ours"]), 1)
    for ending, text in (("json", result_text(found)), ("md", table_page(found))):
        write_whole(asked.to / f"{found['name']}.{ending}", text)
    print(found["why"])


if __name__ == "__main__":
    main()
