"""The client of a server: the conversation handle of a harness, over HTTP."""

from loopline.client.connection import ServerProblem as ServerProblem
from loopline.client.connection import ServerUnreachable as ServerUnreachable
from loopline.client.remote_conversation import RemoteConversation as RemoteConversation
from loopline.client.remote_conversation import RemoteServer as RemoteServer
from loopline.client.remote_conversation import connect as connect
