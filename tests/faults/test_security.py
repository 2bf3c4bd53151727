"""Secrets that must not get out, checkpoints that must not get in, text that must not steer a terminal."""

import html
import json
import os
import pickle
import re
import shutil
from urllib.parse import quote, quote_plus

import pytest
import torch
from api_server import ApiServer, fails, says
from cells import cells
from making import TEMPLATE, load, refused, write_chat_checkpoint

from grpo.base.errors import UserError, escape, is_secret_name, redact
from grpo.config.values import expand_variables
from grpo.data import prompts
from grpo.data.prompts import ChatEncoder, load_tokenizer
from rewards.api.reply import MAX_EXCERPT_CHARS, excerpt

# --- secrets --------------------------------------------------------------------------------------------------------

CANARIES = {
    "OPENAI_API_KEY_JUDGE": "canary-judge-7c1e",
    "OPENAI_API_KEY": "canary-openai-55d0",
    "HF_TOKEN": "canary-hf-9a3b",
    "WANDB_API_KEY": "canary-wandb-21aa",
    "SOME_API_KEY": "canary-some-1f9c",
    "DATABASE_PASSWORD": "canary-pass-8e8e",
}


def leaks(child, folder):
    """Where a canary was found: every file, stdout and stderr."""
    found = [name for name in ("stdout", "stderr") if "canary-" in getattr(child, name)]
    return found + [str(path) for path in folder.rglob("*") if path.is_file() and b"canary-" in path.read_bytes()]


def test_no_half_of_a_key_is_left_where_a_long_reply_is_cut(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY_JUDGE", CANARIES["OPENAI_API_KEY_JUDGE"])
    for length in range(MAX_EXCERPT_CHARS - 30, MAX_EXCERPT_CHARS):
        assert "cana" not in excerpt("x" * length + CANARIES["OPENAI_API_KEY_JUDGE"])


def test_what_a_users_reward_prints_and_raises_holds_no_key_and_no_named_secret(make_run, tmp_path):
    """On stdout, on stderr, in debug.log's traceback and in run_state.json they are only named."""
    keys = {"system_prompt": "${A_PLAIN_NAME}", "judge_api_key_env": "JUDGES_LOGIN"}
    run = make_run(reward_funcs=["fakes:forgetful"], **keys)
    named = {"A_PLAIN_NAME": "canary-plain-4b6f", "JUDGES_LOGIN": "canary-login-99"}
    for show_traceback in ({}, {"GRPO_TRACEBACK": "1"}):
        child = run.start("resume_from_checkpoint=true", **CANARIES, **named, **show_traceback)
        assert child.wait() == 1
        traceback = (run.folder / "debug.log").read_text()
        assert "Traceback" in traceback
        for text in (child.stdout, child.stderr, run.state["reason"], traceback):
            assert all(f"[{name}]" in text for name in ("SOME_API_KEY", *named))
        assert leaks(child, tmp_path) == []


def test_a_secret_does_not_get_into_the_configuration(make_run, tmp_path):
    for value in ("${SOME_API_KEY}", "${DATABASE_PASSWORD:-x}"):
        child = make_run(run_name=value).train(**CANARIES, code=2)
        assert "holds a secret" in child.stderr
        assert leaks(child, tmp_path) == []
    run = make_run(reward_funcs=["correctness"], judge_model="m", judge_api_key_env="canary-judge-7c1e")
    assert leaks(run.train(code=2), run.folder) == []


def test_no_output_of_a_run_holds_a_key_or_the_value_of_a_variable_that_the_configuration_names(make_run, tmp_path):
    """A whole run with TensorBoard, a cache and completions. Variables, whatever their names, are in system_prompt,
    which is in every prompt, in run_name, and the judge's key, which it repeats in every failure; its value begins with
    that of another one. What was written in the file stays in config.resolved.yaml, and the run resumes."""
    named = {
        "A_PLAIN_NAME": 'canary-plain "4b6f"\\',
        "TEAM": "canary-team-aa10",
        "JUDGES_LOGIN": "canary-team-aa10-and-more",
    }
    keys = {
        "system_prompt": "You are ${A_PLAIN_NAME}.",
        "run_name": "${TEAM}",
        "judge_api_key_env": "JUDGES_LOGIN",
        "judge_model": "m",
        "reward_funcs": ["correctness"],
        "max_unscored": 1.0,
        "report_to": ["tensorboard"],
        "num_completions_to_print": 4,
        "api_cache": str(tmp_path / "cache.db"),
    }
    echo = fails(400, message=f"bad request with {named['JUDGES_LOGIN']} and {CANARIES['HF_TOKEN']}")
    named |= CANARIES | {"setup": "talkative"}
    with ApiServer(default=echo) as server:
        child = make_run("refused", judge_base_url=server.url, **keys).train(**named, code=3)
    assert leaks(child, tmp_path) == []
    assert "-and-more" not in child.stderr
    with ApiServer(*[says("A"), says("B"), echo] * 4) as server:
        run = make_run(judge_base_url=server.url, **keys)
        child = run.train("max_steps=2", **named)
        assert leaks(child, tmp_path) == []
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {named['JUDGES_LOGIN']}"}
        assert "400" in "".join(path.read_text() for path in (run.folder / "completions").iterdir())
        assert len([path for path in tmp_path.rglob("*") if path.is_file()]) > 25
        resolved = (run.folder / "config.resolved.yaml").read_text()
        assert "You are ${A_PLAIN_NAME}." in resolved
        assert "run_name: ${TEAM}" in resolved
        run.resume(**named)
        assert run.steps[-1] == 4
        changed = run.resume("max_steps=6", **{**named, "A_PLAIN_NAME": "canary-other-value"}, code=2)
    assert "system_prompt" in changed.stderr
    assert leaks(changed, tmp_path) == []


def test_a_path_that_exists_is_no_secret(tmp_path, monkeypatch):
    """It would only make messages unreadable, and final/ must name its base model."""
    monkeypatch.setenv("WHERE_MODELS_ARE", str(tmp_path))
    assert expand_variables("${WHERE_MODELS_ARE}/qwen") == f"{tmp_path}/qwen" == redact(f"{tmp_path}/qwen")


def test_what_counts_as_a_secret(monkeypatch):
    secret = "OPENAI_API_KEY HF_TOKEN AWS_SECRET_ACCESS_KEY MY_PASSWORD TOKENS OPENAI_API_KEY_JUDGE MONKEY DB_PASS "
    secret += "SSH_PASSPHRASE API_KEY2"
    plain = "PATH KEYBOARD TOKENIZERS_PARALLELISM PASSAGE HOME"
    assert all(map(is_secret_name, secret.split()))
    assert not any(map(is_secret_name, plain.split()))
    monkeypatch.setenv("SHORT_KEY", "abc")
    monkeypatch.setenv("LONG_KEY", " abcdefgh ")
    assert redact("abc abcdefgh abcdefghi") == "abc [LONG_KEY] [LONG_KEY]i"
    monkeypatch.setenv("LONGER_KEY", "abcdefgh-and-more")
    assert redact("abcdefgh-and-more") == "[LONGER_KEY]"
    monkeypatch.setenv("LONG_KEY", 'ab"cdéfgh')
    assert redact(json.dumps({"x": 'ab"cdéfgh'})) == redact(json.dumps({"x": 'ab"cdéfgh'}, ensure_ascii=False))
    assert redact(json.dumps('ab"cdéfgh')) == '"[LONG_KEY]"'
    hard = "canary \\'\"<&>/ é\n%"
    monkeypatch.setenv("LONG_KEY", hard)
    forms = [hard, repr(hard), json.dumps(hard), html.escape(hard), quote(hard), quote(hard, safe=""), quote_plus(hard)]
    assert [form for form in forms if "canary" in redact(f"so {form} is")] == []
    assert "canary" not in redact(f"{ValueError(hard)!r}, {[hard]}, {json.dumps([hard], ensure_ascii=False)}")


# --- checkpoints and tokenizers that are traps ---------------------------------------------------------------------


EMBEDDING = "model.embed_tokens.weight"


class Trap:
    def __reduce__(self):
        return os.system, ("touch pwned",)


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_chat_checkpoint(tmp_path / "model")
    return tmp_path / "model"


def index_of(folder, content):
    shutil.move(folder / "model.safetensors", folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(content if isinstance(content, str) else json.dumps(content))


def header_of(folder, header, size=None):
    length = (size or len(header)).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(length + header)


def only_a_pickle(folder):
    torch.save(Trap(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def sized_by_text(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"hidden_size": 32', '"hidden_size": "big"'))


BEYOND = b'{"model.norm.weight":{"dtype":"F32","shape":[32],"data_offsets":[0,128]}}'
TRAPS = {
    "a pickle by the name of safetensors": lambda at: (at / "model.safetensors").write_bytes(pickle.dumps(Trap())),
    "only a pickle": only_a_pickle,
    "an index that leads out": lambda at: index_of(at, {"weight_map": {EMBEDDING: "../../secret.safetensors"}}),
    "an index of numbers": lambda at: index_of(at, {"weight_map": {EMBEDDING: 3}}),
    "an index that is a list": lambda at: index_of(at, [1]),
    "a broken index": lambda at: index_of(at, '{"weight_map": '),
    "a header of 2**60 bytes": lambda at: header_of(at, b"{}", 2**60),
    "offsets beyond the file": lambda at: header_of(at, BEYOND),
    "config.json is a list": lambda at: (at / "config.json").write_text("[]"),
    "config.json with text for numbers": sized_by_text,
}


@pytest.mark.parametrize("name", TRAPS)
def test_a_checkpoint_that_is_a_trap_is_refused_and_nothing_runs(model, name, tmp_path):
    TRAPS[name](model)
    refused(lambda: load(model), str(model))
    assert not (tmp_path / "pwned").exists()


IMPOSSIBLE = cells("""
    "hidden_size": -32 ¦ "vocab_size": 32.5 ¦ "num_hidden_layers": "9" ¦ "head_dim": 7 ¦ "num_key_value_heads": 3
    "hidden_size": 1000000000000000 ¦ "vocab_size": 1000000000000000 ¦ "intermediate_size": 1000000000000000
    "num_hidden_layers": 1000000000000000 ¦ "num_hidden_layers": 1000000000000000, "layer_types": null
    "head_dim": 1000000000 ¦ "max_position_embeddings": 1000000000000000 ¦ "max_position_embeddings": 0
    "num_attention_heads": 0 ¦ "num_attention_heads": 3 ¦ "num_attention_heads": null
    "rms_norm_eps": "x" ¦ "rms_norm_eps": NaN ¦ "rms_norm_eps": -1.0 ¦ "tie_word_embeddings": "maybe" ¦ "mlp_bias": [1]
    "rope_parameters": {"rope_type": "default", "rope_theta": 0} ¦ "rope_parameters": [1]
    "rope_parameters": {"rope_type": "default", "rope_theta": "x"}
    "rope_parameters": {"rope_type": "default", "rope_theta": NaN}
    "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0}
    """)


@pytest.mark.parametrize("change", IMPOSSIBLE)
def test_a_config_of_impossible_numbers_is_refused_at_once(model, change):
    """Before anything is allocated: a billion layers would take an hour, and a size of -1 an internal error."""
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | json.loads(f"{{{change}}}")))
    refused(lambda: load(model), str(model))


def test_a_tokenizer_with_code_of_its_own_is_refused(model, tmp_path):
    path = model / "tokenizer_config.json"
    changes = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    (model / "evil.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\n")
    try:
        load_tokenizer(model)  # the class that is built in may be used in its place
    except UserError as error:
        assert error.exit_code == 3
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("attack", [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{% set x = cycler.__init__.__globals__.os.system('touch pwned') %}",
    "{{ lipsum.__globals__['os'].popen('touch pwned').read() }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ 'x' * 2000001 }}",
])  # fmt: skip
def test_a_chat_template_cannot_run_code_and_ends(model, attack, tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "TEMPLATE_SECONDS", 0.2)
    (tmp_path / "template.jinja").write_text(attack + TEMPLATE)
    refused(lambda: ChatEncoder(load_tokenizer(model, str(tmp_path / "template.jinja"))))
    assert not (tmp_path / "pwned").exists()


# --- the terminal --------------------------------------------------------------------------------------------------


def test_model_text_reaches_no_terminal_as_it_is(make_run):
    run = make_run(num_completions_to_print=8, report_to=["tensorboard"], max_steps=2)
    child = run.train(setup="steers_the_terminal")
    assert "\\x1b]0;" in child.stderr
    assert "\\u202e" in child.stderr
    for text in (child.stderr, child.stdout):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\x9b]", text)
    assert b"\x1b]0;" not in b"".join(path.read_bytes() for path in (run.folder / "tb").iterdir())
    assert escape("a\tb\nc\x1b\u202e\ud800") == "a\tb\nc\\x1b\\u202e\\ud800"
