"""The input factor of a convolution from rows of the image: a third of the work for a 3x3 kernel.

    SA[(i,u), (i',u')] = Σ_n Σ_{h,w} a[h + i, w] a[h + i', w]ᵀ        u = (channel, kernel column)

Here a is unfolded along the width only. For the pair (i, i') the sum over h runs over a window of
the row products

    G_δ[r] = Σ_{n,w} a[r, w] a[r + δ, w]ᵀ,    δ = i' − i ≥ 0

so k of these serve all k² pairs, and copy k times less than all patches do (vertical stride 1). On
one CPU core in float32 this takes 0.25 to 0.95 times as long as the product of patches, for the
convolutions of a ResNet-20, of the 3c3d network and of small nets, batches of 128 and 512. A whole
Monte-Carlo KFAC pass over a ResNet-20 takes 0.7 times as long (256 images, median of 5; no gain on
small nets).
"""

from torch import Tensor

from nas_evidence.curvature.patches import Convolution, sides

#: Largest number of elements of the unfolded rows; larger ones do not fit in the cache (timed).
_ELEMENTS = 1 << 20
_SHORT = 24


def rows_apply(module: Convolution, a: Tensor) -> bool:
    """Tell whether patches share rows of the image, on devices where this was timed."""
    kernel, stride, _ = sides(module)
    return stride[0] == 1 and kernel[0] > 1 and a.device.type == "cpu"


def input_gram(module: Convolution, padded: Tensor) -> Tensor:
    """Return SA [groups, d_in, d_in] of the padded input [n, c_in, h, w], order in, kh, kw."""
    groups, ((kh, kw), _, (dilation, _)) = module.groups, sides(module)
    products = _row_products(module, padded)
    h_out = padded.shape[2] - dilation * (kh - 1)
    c = padded.shape[1] // groups
    gram = padded.new_empty(groups, c, kh, kw, c, kh, kw)
    for i in range(kh):
        for j in range(i, kh):
            window = products[j - i][i * dilation : i * dilation + h_out]
            pair = window.sum(0).reshape(groups, c, kw, c, kw)
            gram[:, :, i, :, :, j, :] = pair
            gram[:, :, j, :, :, i, :] = pair.permute(0, 3, 4, 1, 2)
    return gram.reshape(groups, c * kh * kw, c * kh * kw)


def _row_products(module: Convolution, padded: Tensor) -> list[Tensor]:
    """Return G_δ for δ = 0, ..., kh − 1 steps of the dilation [rows, groups, c kw, c kw]."""
    groups, ((kh, kw), (_, stride), (step, dilation)) = module.groups, sides(module)
    n, channels, height, width = padded.shape
    w_out = (width - dilation * (kw - 1) - 1) // stride + 1
    size = channels // groups * kw
    products = [padded.new_zeros((height - d * step) * groups, size, size) for d in range(kh)]
    chunk = max(1, _ELEMENTS // (channels * height * w_out * kw))
    for start in range(0, n, chunk):
        part = padded[start : start + chunk]
        by_n, by_c, by_h, by_w = part.stride()
        # One row per position gives the faster product, but short rows are slow to copy.
        if size >= _SHORT:
            unfolded = part.as_strided(
                (height, groups, len(part), w_out, channels // groups, kw),
                (by_h, by_c * (channels // groups), by_n, by_w * stride, by_c, by_w * dilation),
                part.storage_offset(),
            )
            rows = unfolded.reshape(height * groups, -1, size)
        else:
            unfolded = part.as_strided(
                (height, channels, kw, len(part), w_out),
                (by_h, by_c, by_w * dilation, by_n, by_w * stride),
                part.storage_offset(),
            )
            rows = unfolded.reshape(height * groups, size, -1).mT
        for d, product in enumerate(products):
            product.baddbmm_(rows[: len(product)].mT, rows[d * step * groups :])
    return [product.reshape(-1, groups, size, size) for product in products]
