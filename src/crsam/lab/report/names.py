"""What the figures of a run are called in print, and their units."""

from __future__ import annotations

from typing import NamedTuple


class Name(NamedTuple):
    """Of a figure."""

    text: str
    unit: str = ""
    meaning: str = ""
    """A sentence, for those who have not met it."""


NAMES = {
    "loss": Name("loss", "nats", "Mean cross-entropy."),
    "accuracy": Name("accuracy", "%", "Share of images whose label is right."),
    "lr": Name("learning rate"),
    "rho": Name("ρ", "", "The radius that the steps used: during the warm-up it rises."),
    "grad_norm": Name("gradient norm", "", "Of the batch, where the weights are."),
    "gradient_norm": Name("gradient norm", "", "Of the mean loss over all measured images."),
    "loss_plus": Name("loss at w + e", "nats", "Of the batch, uphill."),
    "loss_minus": Name("loss at w − e", "nats", "Of the batch, downhill."),
    "sharpness": Name("sharpness", "nats", "How much the loss rises one step of length ρ uphill."),
    "curvature": Name("curvature", "", "Second difference of the loss along the gradient."),
    "gradient_norm_of_batches": Name(
        "gradient norm of batches", "", "Mean over batches of the norm of the batch's gradient."
    ),
    "hessian_trace": Name("Hessian trace", "", "Sum of the Hessian's eigenvalues."),
    "normalized_trace": Name("C(w)", "", "The paper's normalised trace: trace ÷ gradient norm."),
    "normalized_trace_of_batches": Name(
        "C(w) of batches", "", "Trace ÷ mean over batches of the norm of the batch's gradient."
    ),
    "top_eigenvalue": Name("top eigenvalue", "", "The Hessian's largest."),
    "frobenius_norm": Name("Frobenius norm", "", "Of the Hessian."),
    "approximation_ratio": Name(
        "approximation ratio", "", "Rise of the loss by one ascent step ÷ by 20, mean of samples."
    ),
    "approximation_ratio_of_means": Name(
        "approximation ratio of means", "", "Mean rise by one ascent step ÷ mean rise by 20."
    ),
    "approximation_ratio_left_out": Name(
        "samples left out of the ratio", "", "Their loss hardly rises by 20 ascent steps."
    ),
    "generalization_bound": Name("generalization bound", "nats", "The paper's Theorem 2."),
    "test_accuracy": Name("test accuracy", "%", "After the last epoch."),
    "test_loss": Name("test loss", "nats", "After the last epoch."),
    "mean_accuracy": Name("mean accuracy", "%", "Over all 15 corruptions and 5 severities."),
    "mce": Name("mCE", "%", "Mean corruption error, in per cent of the reference's."),
    "train_loss": Name("training loss", "nats", "At the end, without augmentation."),
    "seconds": Name("time", "s", "Of a run's training."),
    "images_per_second": Name("speed", "images/s", "Training images, the run's whole time."),
    "data_wait": Name("waits for data", "share", "Of the time, with nothing to train on."),
    "broken_images": Name("broken images", "", "Could not be read; others took their place."),
    "steps": Name("steps", "", "Of the optimizer."),
}


def name_of(key: str) -> Name:
    """Its name; the key itself in words for what is not known.

    Example:
        >>> name_of("lr").text, name_of("trust_scale").text
        ('learning rate', 'trust scale')
    """
    return NAMES.get(key) or Name(key.replace("_", " "))
