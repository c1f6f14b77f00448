"""How the keys and tokens of vendors begin."""

from __future__ import annotations

VENDOR_PREFIXES = {
    "OpenAI": ("sk-", "sk-proj-", "sk-svcacct-", "sk-admin-"),
    "Anthropic": ("sk-ant-api03-", "sk-ant-admin01-", "sk-ant-oat01-"),
    "OpenRouter": ("sk-or-v1-",),
    "Google": ("AIzaSyA", "GOCSPX-", "ya29.", "1//0", "AQ.Ab8"),
    "Hugging Face": ("hf_", "api_org_"),
    "GitLab": ("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glsoat-", "GR1348941"),
    "GitHub": ("github_pat_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    "Slack": ("xoxb-1", "xoxp-1", "xoxe.xoxp-1-", "xapp-1-A"),
    "AWS": ("ABSK", "bedrock-api-key-", "aws_secret_access_key=", '"SecretAccessKey": "'),
    "others": ("gsk_", "nvapi-", "pplx-", "r8_", "tvly-", "xai-", "npm_", "py" + "pi-AgEIcHlw"),
    "Loopline": ("llk_0123456789abcdef_",),
}
"""The beginnings by vendor; the rest of each key is random: letters and digits, 60 of them here."""
