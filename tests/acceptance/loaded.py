"""What the process has loaded that is forked for each command: all public names."""

import nas_evidence

for name in nas_evidence.__all__:
    getattr(nas_evidence, name)
