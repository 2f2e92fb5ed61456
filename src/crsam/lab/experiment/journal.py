"""What a run writes down while it goes on, and reads when it starts again."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from crsam.errors import UserError
from crsam.lab.data.images import Images
from crsam.lab.experiment.build import Parts, autocast_of
from crsam.lab.experiment.folder import MetricsLog, RunFolder, finite
from crsam.lab.experiment.measure import Setting, measure
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.restore import first_lines, last_whole
from crsam.lab.experiment.scalars import ScalarWriter
from crsam.lab.train import checkpoint
from crsam.lab.train.distributed import World
from crsam.lab.train.evaluate import Score, evaluate
from crsam.lab.train.loop import Metrics
from crsam.progress import say

NUM_MEASURED = 2048
"""Training images on which the figures of a result are taken."""
FLATNESS = {"loss": "train_loss", "gradient_norm": "gradient_norm", "sharpness": "sharpness"}
"""Those figures, and what the result calls them."""

Result = dict[str, Any]
Watch = Callable[[int, Score], None]


class Journal:
    """Metrics, checkpoints and the result of one run; told of steps and epochs as they end."""

    def __init__(
        self,
        place: RunFolder,
        recipe: Recipe,
        parts: Parts,
        world: World,
        watch: Watch | None = None,
    ) -> None:
        self.place, self.recipe, self.parts, self.world = place, recipe, parts, world
        self.watch, self.validated = watch, (-1, Score(math.nan, math.nan))
        self.epoch_began: float | None = None
        self.epoch_seconds: list[float] = []
        self.autocast = autocast_of(recipe)
        self.began, self.seconds_before, length = time.perf_counter(), 0.0, 0
        if place.has_checkpoint:
            file, state = last_whole(place, world)
            try:
                parts.training.load_state_dict(state["training"])
                length, self.seconds_before = state["metrics_length"], state["seconds"]
                if "waits" in state:  # not in checkpoints of earlier versions
                    parts.batches.waits.load_state_dict(state["waits"])
                    for broken, found in zip(parts.splits.broken, state["broken"]):
                        broken.learn(found)
            except (KeyError, TypeError, RuntimeError, ValueError) as error:
                raise UserError(
                    f"{file} is of another model or optimizer: {first_lines(error)}"
                ) from error
            world.wait()  # all have read
            if file == place.previous_file and world.is_main:  # or the next save would keep the
                file.replace(place.checkpoint_file)  # damaged one, in place of this one
        world.wait()  # or the main process might write a new checkpoint before all have read
        self.log = MetricsLog(place.metrics_file, length) if world.is_main else None
        self.scalars = None
        if recipe.log.tensorboard and world.is_main:
            self.scalars = ScalarWriter(place.path, parts.training.step)

    def write(self, kind: str, values: Metrics) -> None:
        if self.log is not None:
            self.log.write({"kind": kind, **values})
        if self.scalars is not None:
            self.scalars.write(kind, values)

    def trained(self, values: Metrics) -> None:
        epoch = values["step"] / len(self.parts.batches)
        self.write("train", {"epoch": round(epoch, 4), **values})

    def ended_epoch(self, epoch: int) -> None:
        last = epoch == self.parts.plan.epochs
        if self.epoch_began is not None:  # not the first of this process: it compiles
            self.epoch_seconds.append(time.perf_counter() - self.epoch_began)
        self.world.agree(self.parts.training.model, self.parts.training.judged)
        if num_broken := self.count_broken():
            self.write("data", {"epoch": epoch, "broken_images": num_broken})
        if self.parts.splits.validation is not None and (
            last or epoch % self.recipe.log.evaluate == 0
        ):
            score = self.score(self.parts.splits.validation, "validating")
            self.write("validation", {"epoch": epoch, **score._asdict()})
            self.validated = self.parts.training.step, score
            if self.watch is not None:
                self.watch(epoch, score)
        wanted = self.recipe.measure
        if wanted.metrics and (last or epoch % wanted.every == 0):
            for split in ("train", "test") if wanted.split == "both" else (wanted.split,):
                kind = "measure" if split == "train" else "measure_test"
                self.write(kind, {"epoch": epoch, **self.measured(split)})
        if last or epoch % self.recipe.log.checkpoint == 0:
            self.save()
        self.epoch_began = time.perf_counter()

    def count_broken(self) -> int:
        """How many images any of the processes could not read; all of them know which, then."""
        for broken in self.parts.splits.broken:
            broken.learn(self.world.union(broken.found))
        return sum(map(len, self.parts.splits.broken))

    def measured(self, split: str) -> Metrics:
        """The figures that the recipe asks for, their errors, and what belongs to them."""
        wanted, splits = self.recipe.measure, self.parts.splits
        found = measure(
            self.parts.training.judged,
            splits.train if split == "train" else splits.test,
            splits.feed,
            wanted.metrics,
            samples=wanted.samples,
            how=Setting(rho=wanted.rho, num_probes=wanted.num_probes, batch_size=wanted.batch_size),
            world=self.world,
        )
        errors = {f"{n}_stderr": f.stderr for n, f in found.items() if f.stderr is not None}
        parts = {f"{n}_{part}": v for n, f in found.items() for part, v in f.parts.items()}
        return {name: figure.value for name, figure in found.items()} | errors | parts

    def score(self, images: Images, label: str) -> Score:
        return evaluate(
            self.parts.training.judged,
            images,
            self.parts.splits.feed,
            autocast=self.autocast,
            world=self.world,
            label=label,
        )

    def save(self) -> None:
        self.world.agree(self.parts.training.model, self.parts.training.judged)
        self.parts.training.tally.agree(self.world)
        if self.log is not None:
            state = {
                "training": self.parts.training.state_dict(),
                "metrics_length": self.log.sync(),
                "seconds": self.seconds,
                "waits": self.parts.batches.waits.state_dict(),
                "broken": [sorted(broken.found) for broken in self.parts.splits.broken],
            }
            checkpoint.save(self.place.checkpoint_file, state, keep=self.place.previous_file)

    @property
    def seconds(self) -> float:
        """Of training, over all starts."""
        return self.seconds_before + time.perf_counter() - self.began

    def finish(self, diverged_at: int | None) -> Result:
        """The test set, once, if at all; and the figures that show how flat the place is."""
        seconds, step, splits = self.seconds, self.parts.training.step, self.parts.splits
        validation = self.last_validation()
        test = self.score(splits.test, "testing") if self.recipe.log.test else None
        judged = test or validation
        assert judged is not None  # a recipe without either is refused
        if diverged_at is None and not math.isfinite(judged.loss):
            diverged_at = step  # the very last step did it
        result: Result = {
            "method": self.recipe.method,
            "seed": self.recipe.seed,
            "test_accuracy": test and test.accuracy,
            "test_loss": test and test.loss,
            "validation_accuracy": validation and validation.accuracy,
            "validation_loss": validation and validation.loss,
            "train_loss": None,
            "gradient_norm": None,
            "sharpness": None,
            "steps": step,
            "rho_warmup": getattr(self.parts.training.optimizer, "warmup", None),
            "seconds": round(seconds, 3),
            "seconds_per_epoch": self.seconds_per_epoch(seconds),
            "images_per_second": round(step * self.parts.batches.batch_size / seconds, 1),
            "data_wait": round(self.parts.batches.waits.share, 4),
            "broken_images": self.count_broken(),
            "diverged_at": diverged_at,
        }
        if diverged_at is None:
            model = self.parts.training.judged
            found = measure(
                model, splits.train, splits.feed, FLATNESS, samples=NUM_MEASURED, world=self.world
            )
            result |= {FLATNESS[name]: figure.value for name, figure in found.items()}
        if (num_broken := result["broken_images"]) and self.world.is_main:
            images = "1 image" if num_broken == 1 else f"{num_broken} images"
            say(f"{images} could not be read; others were shown in place of them")
        if test is not None:
            self.write("test", {"step": step, **test._asdict()})
        result = finite(result)
        if self.world.is_main:
            self.place.write_json(self.place.result_file.name, result)
        self.world.wait()
        return result

    def last_validation(self) -> Score | None:
        """Of the weights as they are now, where images were held out."""
        images, (step, score) = self.parts.splits.validation, self.validated
        if images is None:
            return None
        current = step == self.parts.training.step
        return score if current else self.score(images, "validating")

    def seconds_per_epoch(self, seconds: float) -> float:
        """The median of those after the first, which compiles; of a single one, all there is."""
        epochs = self.parts.training.step / len(self.parts.batches)
        found = statistics.median(self.epoch_seconds) if self.epoch_seconds else seconds / epochs
        return round(found, 4)

    def close(self) -> None:
        for file in (self.log, self.scalars):
            if file is not None:
                file.close()
