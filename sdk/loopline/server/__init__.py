"""The server: conversations over HTTP, as an ASGI app and as the command `loopline serve`."""

from loopline.server.application import app as app
from loopline.server.application import make_server as make_server
from loopline.server.application import reading_app as reading_app
from loopline.server.page_export import export_page as export_page
from loopline.server.principals import ApiKeys as ApiKeys
from loopline.server.principals import Authenticator as Authenticator
from loopline.server.principals import FirstOf as FirstOf
from loopline.server.principals import LocalUser as LocalUser
from loopline.server.principals import Principal as Principal
from loopline.server.principals import Unauthenticated as Unauthenticated
from loopline.server.principals import add_key as add_key
from loopline.server.principals import revoke_key as revoke_key
from loopline.server.quotas import DailyQuotas as DailyQuotas
from loopline.server.settings import PageLogin as PageLogin
from loopline.server.settings import Retention as Retention
from loopline.server.settings import ServerSettings as ServerSettings
from loopline.server.token_users import ClaimNames as ClaimNames
from loopline.server.token_users import TokenUsers as TokenUsers
