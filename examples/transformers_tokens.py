"""CR-SAM in a Transformers ``Trainer``: a small BERT learns which of two tokens comes first.

pip install 'crsam[transformers]'
python examples/transformers_tokens.py --method crsam
torchrun --nproc-per-node 2 examples/transformers_tokens.py
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import crsam
from crsam.integrations.transformers import SharpnessAwareTrainer

LENGTH, FIRST, SECOND = 12, 1, 2


def sentences(num: int, seed: int) -> list[dict[str, Any]]:
    """Random words around the two tokens; the label says whether they are in order."""
    g = torch.Generator().manual_seed(seed)
    words = torch.randint(3, 40, (num, LENGTH), generator=g)
    made = []
    for sentence in words:
        a, b = torch.randperm(LENGTH, generator=g)[:2]
        sentence[a], sentence[b] = FIRST, SECOND
        made.append({"input_ids": sentence, "labels": int(a < b)})
    return made


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="crsam", choices=crsam.methods())
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = SharpnessAwareTrainer(
            BertForSequenceClassification(config),
            TrainingArguments(
                folder,
                num_train_epochs=args.epochs,
                per_device_train_batch_size=16,
                gradient_accumulation_steps=2,
                learning_rate=2e-3,
                lr_scheduler_type="cosine",
                max_grad_norm=1.0,
                logging_steps=50,
                save_strategy="no",
                report_to="none",
            ),
            train_dataset=sentences(2000, seed=1),
            eval_dataset=sentences(500, seed=2),
            compute_metrics=accuracy,
            method=args.method,
            method_options={"rho": 0.05},
        )
        trainer.train()
        print(f"{args.method}: accuracy {100 * trainer.evaluate()['eval_accuracy']:.1f} %")


if __name__ == "__main__":
    main()
