"""Makes the scripts in benchmarks/reproduce importable as `nas_evidence_reproduce`."""

from nas_evidence.cli.reproduce import make_importable, scripts_folder

make_importable(scripts_folder())
