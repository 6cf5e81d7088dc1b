"""No way to a model but the gateway: proved on the syntax trees of both packages.

A run-time check would only see imports that happen to be executed; this sees all of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("cuo_checkpoint", "cuo_supervisor")

PROVIDER_MODULE = "cuo_supervisor/gateway_provider.py"
"""The one module that may import LiteLLM, inside functions, and name the gateway's alias."""

PROVIDER_SDKS = frozenset(
    """ai21 aioboto3 aiobotocore aleph_alpha_client anthropic azure boto3 botocore cerebras cohere
    dashscope deepseek fireworks google groq guidance huggingface_hub ibm_watsonx_ai instructor
    langchain langchain_anthropic langchain_aws langchain_cohere langchain_community
    langchain_google_genai langchain_google_vertexai langchain_groq langchain_litellm
    langchain_mistralai langchain_ollama langchain_openai llama_cpp mistralai ollama openai
    openrouter portkey_ai pydantic_ai replicate sagemaker together transformers vertexai vllm
    voyageai writerai xai_sdk zhipuai""".split()  # noqa: SIM905 - one word a line would fill a page
)

LITELLM_NAMES = frozenset({"acompletion", "custom_provider_map", "CustomLLM", "CustomLLMError"})
"""All of LiteLLM that may be used; its re-exports (`AsyncOpenAI`, ...) are provider SDKs."""

DYNAMIC_MODULES = frozenset({"importlib", "imp", "runpy", "zipimport", "pkgutil"})
HARMLESS = frozenset({"importlib.resources", "importlib.metadata"})  # read files, import nothing
DYNAMIC_CALLS = frozenset({"__import__", "eval", "exec", "compile"})

DYNAMIC_ALLOWED = {
    "cuo_supervisor/__init__.py": "public names are loaded on first use, from a table in the file",
    "cuo_supervisor/cli/main.py": "commands are loaded on first use, from a table in the file",
    "cuo_supervisor/skillset/__main__.py": "one skill is loaded per process, from a table in the file",
}
"""Module of cuo_supervisor -> why it may import by name.

Only `import_module` with a plain name or table entry, and no text in the file may name a provider.
"""

MODEL_NAME = re.compile(
    r"""(?ix) (?<![a-z]) (
        gpt-?[0-9o] | chatgpt | claude | sonnet | haiku | gemini | mistral | mixtral | deepseek
        | qwen | command-r | llama-?[0-9] | text-embedding | o[134]-(mini|preview)
        | (openai|anthropic|bedrock|azure|vertex_ai|cohere|groq|ollama)/
        | api\.(openai|anthropic|mistral|cohere|groq|deepseek)\. | bedrock-runtime
        | generativelanguage\.googleapis | aiplatform\.googleapis
    )"""
)


def findings(path: str, source: str) -> list[str]:
    """Every breach in one module, as `line: what`. `path` is relative to the repository."""
    tree = ast.parse(source)
    docstrings = set(_docstrings(tree))
    inside = _inside_functions(tree)
    aliases = _litellm_aliases(tree)
    supervisor = path.startswith("cuo_supervisor/")
    out: list[str] = []

    def found(node: ast.AST, what: str) -> None:
        out.append(f"{getattr(node, 'lineno', 0)}: {what}")

    for node in ast.walk(tree):
        for name in _imports(node):
            root = name.split(".")[0]
            if root in PROVIDER_SDKS:
                found(node, f"provider SDK {name}")
            if root == "litellm":
                if path != PROVIDER_MODULE:
                    found(node, "litellm outside the provider module")
                elif node not in inside:
                    found(node, "litellm at module level")
            if supervisor and _dynamic(name) and path not in DYNAMIC_ALLOWED:
                found(node, f"dynamic import through {name}")
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "litellm":
            for alias in node.names:
                if alias.name not in LITELLM_NAMES:
                    found(node, f"litellm re-export {alias.name}")
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in aliases
            and node.attr not in LITELLM_NAMES
        ):
            found(node, f"litellm re-export {node.attr}")
        if supervisor and isinstance(node, ast.Call) and path not in DYNAMIC_ALLOWED:
            called = node.func
            if isinstance(called, ast.Name) and called.id in DYNAMIC_CALLS:
                found(node, f"dynamic code through {called.id}")
            if isinstance(called, ast.Attribute) and called.attr in {"__import__", "import_module"}:
                found(node, f"dynamic import through {called.attr}")
        if path in DYNAMIC_ALLOWED and (what := _beyond_allowance(node)):
            found(node, what)
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in docstrings
            and path != PROVIDER_MODULE
            and MODEL_NAME.search(node.value)
        ):
            found(node, "model or provider name")
    return out


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _dynamic(name: str) -> bool:
    if any(name == allowed or name.startswith(allowed + ".") for allowed in HARMLESS):
        return False
    return name.split(".")[0] in DYNAMIC_MODULES


def _beyond_allowance(node: ast.AST) -> str:
    """What a module of DYNAMIC_ALLOWED does beyond importing from a table of our own modules."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        root = node.value.split(".")[0]
        return f"names {root}" if root in PROVIDER_SDKS | {"litellm"} else ""
    if isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Name) and called.id in DYNAMIC_CALLS | {"import_module"}:
            return f"dynamic code through {called.id}"
        if isinstance(called, ast.Attribute) and called.attr == "import_module":
            plain = len(node.args) == 1 and isinstance(node.args[0], ast.Name | ast.Subscript)
            return "" if plain and not node.keywords else "computed module name"
    return ""


def _inside_functions(tree: ast.AST) -> set[ast.AST]:
    functions = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    )
    return {inner for function in functions for inner in ast.walk(function)}


def _litellm_aliases(tree: ast.AST) -> set[str]:
    return {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.split(".")[0] == "litellm"
    }


def _docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    """String statements: docstrings proper, and those under module constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.clause("101-11")
@pytest.mark.criterion("101-AC15")
def test_supervisor_litellm_routes_via_gateway() -> None:
    """Neither package imports a provider SDK, names a model, or reaches LiteLLM elsewhere."""
    bad = [
        f"{path.relative_to(ROOT)}:{finding}"
        for path in modules()
        for finding in findings(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    ]
    assert bad == []


def test_walk_sees_the_packages() -> None:
    """The walk is not vacuous: it visits both packages and the provider module."""
    seen = {path.relative_to(ROOT).as_posix() for path in modules()}
    assert {PROVIDER_MODULE, "cuo_supervisor/gateway.py", "cuo_checkpoint/errors.py"} <= seen
    assert "import litellm" in (ROOT / PROVIDER_MODULE).read_text("utf-8")


ELSEWHERE = "cuo_supervisor/graph.py"
LAZY = "cuo_supervisor/__init__.py"


@pytest.mark.criterion("101-AC15")
@pytest.mark.parametrize(
    ("path", "source", "what"),
    [
        (ELSEWHERE, "import boto3", "provider SDK boto3"),
        (ELSEWHERE, "import os, openai as o", "provider SDK openai"),
        (ELSEWHERE, "from anthropic import Anthropic", "provider SDK anthropic"),
        (ELSEWHERE, "from google.cloud import aiplatform", "provider SDK google"),
        (ELSEWHERE, "import google.generativeai", "provider SDK google"),
        (ELSEWHERE, "def f():\n    if 1:\n        import botocore.client", "provider SDK botocore"),
        (ELSEWHERE, "try:\n    import cohere\nexcept ImportError: pass", "provider SDK cohere"),
        ("cuo_checkpoint/db.py", "from mistralai import Mistral", "provider SDK mistralai"),
        ("cuo_checkpoint/db.py", "import litellm", "outside the provider module"),
        (ELSEWHERE, "def f():\n    from litellm import acompletion", "outside the provider module"),
        (PROVIDER_MODULE, "import litellm", "at module level"),
        (PROVIDER_MODULE, "class A:\n    import litellm", "at module level"),
        (PROVIDER_MODULE, "def f():\n import litellm\n litellm.AsyncOpenAI()", "AsyncOpenAI"),
        (PROVIDER_MODULE, "def f():\n import litellm as x\n x.completion()", "completion"),
        (PROVIDER_MODULE, "def f():\n from litellm import OpenAI", "re-export OpenAI"),
        (PROVIDER_MODULE, "def f():\n from litellm.llms import openai", "re-export openai"),
        (ELSEWHERE, "import importlib\nimportlib.import_module('openai')", "dynamic import"),
        (ELSEWHERE, "from importlib import import_module", "dynamic import"),
        (ELSEWHERE, "import importlib.util", "dynamic import"),
        (ELSEWHERE, "from pkgutil import resolve_name", "dynamic import"),
        (ELSEWHERE, "__import__('open' + 'ai')", "dynamic code"),
        (ELSEWHERE, "import builtins\nbuiltins.__import__('x')", "dynamic import"),
        (ELSEWHERE, "exec('import openai')", "dynamic code"),
        (LAZY, "import importlib\nimportlib.import_module('open' + x)", "computed module name"),
        (LAZY, "import importlib\nT = {'a': 'openai.types'}", "names openai"),
        (LAZY, "import importlib\nT = {'a': 'litellm'}", "names litellm"),
        (LAZY, "from importlib import import_module\nimport_module(x)", "dynamic code"),
        (LAZY, "__import__(x)", "dynamic code"),
        (ELSEWHERE, "MODEL = 'gpt-4o'", "model or provider name"),
        (ELSEWHERE, "call(model='claude-3-haiku')", "model or provider name"),
        (ELSEWHERE, "m = 'haiku@cuo-supervisor'", "model or provider name"),
        (ELSEWHERE, "m = f'bedrock/{x}'", "model or provider name"),
        (ELSEWHERE, "u = 'https://api.openai.com/v1'", "model or provider name"),
    ],
)
def test_walker_finds(path: str, source: str, what: str) -> None:
    """The walker sees each way around, at any depth."""
    assert any(what in finding for finding in findings(path, source)), findings(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (ELSEWHERE, '"""Talks about openai/ and haiku in a docstring."""\nimport httpx'),
        (ELSEWHERE, "from importlib.resources import files"),
        (ELSEWHERE, "import importlib.metadata"),
        (ELSEWHERE, "from .openai import x"),
        (ELSEWHERE, "text = 'opusculum, geminated, nô-ên'"),
        (PROVIDER_MODULE, "A = 'haiku@cuo-supervisor'\ndef f():\n import litellm"),
        ("cuo_checkpoint/serde.py", "import importlib"),
        (LAZY, "import importlib\nimportlib.import_module(HOMES[name])"),
    ],
)
def test_walker_lets_pass(path: str, source: str) -> None:
    """And it does not cry wolf."""
    assert findings(path, source) == []
