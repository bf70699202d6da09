"""The winner as files that others can load: `folder.py` writes them, `predictor.py` reads them.

Reading imports torch, safetensors, pandas, scipy and pydantic alone, so whoever uses an export
needs neither the search nor its libraries; `tests/exporting/test_fresh_process.py` holds it so.
"""
