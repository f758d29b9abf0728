"""Create a small model in the format of Hugging Face, and conversations: `create_files.py FOLDER`.

The questions are about functions of the standard library of Python; the responses are the first lines of their
docstrings. The model has new weights, and a tokenizer with a chat template. A real model and real conversations have
the same files.
"""

import argparse
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MODULES = re.findall(
    r"[\w.]+",
    """argparse ast asyncio base64 bisect calendar collections configparser contextlib copy csv dataclasses datetime
    decimal difflib email.message fractions ftplib functools gzip hashlib heapq html.parser http.client imaplib inspect
    ipaddress itertools json locale logging math mimetypes multiprocessing operator os os.path pathlib pickle random re
    sched secrets shlex shutil smtplib socket sqlite3 statistics string subprocess tarfile tempfile textwrap threading
    tokenize traceback types typing unittest urllib.parse urllib.request uuid warnings weakref wsgiref.util
    xml.dom.minidom xml.etree.ElementTree zipfile""",
)
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def questions() -> Iterator[tuple[str, str]]:
    """Yield questions and responses."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name, value in sorted(vars(module).items()):
            is_documented = not name.startswith("_") and (inspect.isroutine(value) or inspect.isclass(value))
            lines = (inspect.getdoc(value) or "").splitlines() if is_documented else []
            if lines and len(lines[0]) > 10:
                yield f"What is {module_name}.{name}?", lines[0]


def create_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of 2,048 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [END, START, STOP]
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    created = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=STOP, pad_token=END)
    created.chat_template = CHAT_TEMPLATE
    return created


def main() -> None:
    """Write FOLDER/model and FOLDER/chats/chats.jsonl."""
    parser = argparse.ArgumentParser(description="Write a small model and conversations for a rehearsal.")
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    folder = parser.parse_args().folder
    pairs = list(questions())
    tokenizer = create_tokenizer([text for pair in pairs for text in pair])
    tokenizer.save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder / "model")
    (folder / "chats").mkdir(parents=True, exist_ok=True)
    with (folder / "chats/chats.jsonl").open("w") as file:
        for question, response in pairs:
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": response}]
            file.write(json.dumps({"messages": messages}) + "\n")
    print(f"{folder}: a model of {model.num_parameters():,} parameters, {len(pairs):,} conversations")


if __name__ == "__main__":
    main()
