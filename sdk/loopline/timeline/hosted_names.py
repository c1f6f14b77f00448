"""The resource names of files that a server hosts."""

from __future__ import annotations

from loopline.refs import HostedRef
from loopline.timeline.log import ConversationKey
from loopline.timeline.workspace import FileAdded


def is_hosted(file: FileAdded) -> bool:
    """Return whether a version is one for users: an output that is not for the agent alone."""
    return file.area == "outputs" and file.visibility == "external"


def hosted_name(conversation: ConversationKey, turn_id: str, file: FileAdded) -> HostedRef:
    """Return the resource name of a version. It locates the file, and gives no right to read it."""
    return HostedRef(
        tenant=conversation.tenant,
        project=conversation.project,
        stage="file",
        user_id=conversation.user,
        conversation=conversation.name,
        turn_id=turn_id,
        role="assistant",
        path=f"{file.version}/{file.path}",
    )
