"""The forms of keys and tokens that `detect_secrets` does not know, or knows only in an older form."""

from __future__ import annotations

import re

_START = r"(?<![A-Za-z0-9])"

NAMED_SECRET = re.compile(
    r"((?i:secret_?access_?key|session_?token|security_?token)(?:\\?[\"']|\\u0022)?"
    r"[ \t]{0,4}[:=>][ \t]{0,4}(?:\\?[\"']|\\u0022)?)(?:[A-Za-z0-9+]|\\?/){40,}+=*+"
)
"""A secret of AWS, which is known by its name alone; the first group is the name. Quotes may be escaped as in JSON."""
VENDOR_KEYS = (
    # OpenAI, Anthropic, OpenRouter, DeepSeek, Langfuse:
    # https://help.openai.com/en/articles/9132009-how-can-i-view-the-users-or-service-accounts-in-a-project
    # All of these begin with `sk-`. A key has a digit, and names such as `sk-toggleable-content` have none.
    re.compile(r"(?<![A-Za-z0-9_-])[sp]k-(?=[A-Za-z_-]*+[0-9])[A-Za-z0-9_-]{20,}+"),
    # Google: https://cloud.google.com/docs/authentication/api-keys
    re.compile(
        _START + r"(?:AIza[A-Za-z0-9_-]{35,}+|AQ\.[A-Za-z0-9_-]{40,}+|GOCSPX-[A-Za-z0-9_-]{28,}+|"
        r"ya29\.[A-Za-z0-9_.-]{20,}+|1//0[A-Za-z0-9_-]{30,}+)"
    ),
    # Hugging Face: https://huggingface.co/docs/hub/security-tokens
    re.compile(_START + r"(?:hf_|api_org_)[A-Za-z0-9]{30,}+"),
    # GitLab: https://docs.gitlab.com/security/tokens/#token-prefixes
    re.compile(
        _START + r"(?:gl(?:pat|oas|dt|rt|rtr|cbt|ptt|ft|imt|agent|wt|soat|ffct)-|GR1348941)"
        r"[A-Za-z0-9_-]{20,}+(?:\.[a-z0-9]++){0,2}"
    ),
    # GitHub: https://github.blog/2021-04-05-behind-githubs-new-authentication-token-formats/
    re.compile(_START + r"(?:github_pat_[A-Za-z0-9_]{22,}+|gh[oprsu]_[A-Za-z0-9_]{36,}+)"),
    # Slack: https://docs.slack.dev/authentication/tokens
    re.compile(
        _START + r"(?:xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,}+|xapp-[0-9]-[A-Za-z0-9-]{10,}+)"
        r"|hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9_/-]{20,}+"
    ),
    # AWS: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
    re.compile(_START + r"(?:ABSK|bedrock-api-key-)[A-Za-z0-9+/]{40,}+=*+"),
    # Groq, NVIDIA, Perplexity, Replicate, Tavily, xAI:
    # https://github.com/gitleaks/gitleaks/blob/master/config/gitleaks.toml
    re.compile(_START + r"(?:gsk_|nvapi-|pplx-|r8_|tvly-(?:dev-|prod-)?|xai-)[A-Za-z0-9_-]{30,}+"),
    # Stripe: https://docs.stripe.com/keys
    re.compile(_START + r"(?:[rs]k_(?:live|test)|whsec)_[A-Za-z0-9]{24,}+"),
    # npm, Python Package Index: their documentation of API tokens
    re.compile(_START + r"(?:npm_[A-Za-z0-9]{36,}+|[a-z]{4}-AgE[A-Za-z0-9_-]{50,}+)"),
    # Loopline: server-README, `loopline key`
    re.compile(_START + r"llk_[0-9a-f]{16}_[A-Za-z0-9_-]{20,}+"),
)
"""The patterns of the keys of vendors; a search for each takes time linear in the text."""
