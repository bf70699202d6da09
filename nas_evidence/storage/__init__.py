"""How a study is stored: folder, who works on it, log, files behind a URI."""

import logging

#: The winner beside simple models, as the report keeps it in the study folder.
COMPARISON = "report/comparison.json"
# Python would print each line of the log that nobody asked for, with a traceback.
logging.getLogger("nas_evidence").addHandler(logging.NullHandler())
