"""Residual networks (Immer et al. 2021, Fig. 7, Table C8, C9 and C10), which need a GPU.

Five seeds of Table C8 take half an hour to an hour and a half each; of C9 and C10 one run of each
network. A row of Table C8 or C9 is a study; with augmentation it has the last two keys:

    nas-evidence search cifar10 --set plan.epochs=250 --set plan.online.curvature=diag_ef
        --set 'estimators=["diag_ef"]' --set objective=diag_ef
        --set 'plan.augment=["RandomCrop", "RandomHorizontalFlip"]'
        --set plan.likelihood_power=5
"""

FIGURE = "Fig. 7, Table C8, Table C9, Table C10"
TITLE = "Residual networks: depth and width"
CLAIM = (
    "Wider residual networks have more evidence and accuracy, deeper ones need not (rank "
    "correlation 0.97 of evidence and accuracy)."
)
RULE = ""
NEEDS = ("cifar10",)
GPU_HOURS = 80.0
