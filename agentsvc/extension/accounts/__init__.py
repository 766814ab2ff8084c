"""Users, their keys, and logins of browsers, for plugins that authenticate users without a key."""

from agentsvc.accounts import KEY_PREFIX as KEY_PREFIX
from agentsvc.accounts import Login as Login
from agentsvc.accounts import LoginProvider as LoginProvider
from agentsvc.accounts import LoginToken as LoginToken
from agentsvc.accounts import Role as Role
from agentsvc.accounts import UserPatch as UserPatch
from agentsvc.accounts import add_user as add_user
from agentsvc.accounts import change_user as change_user
from agentsvc.accounts import get_user as get_user
from agentsvc.accounts import insert_key as insert_key
from agentsvc.http import KEYRING as KEYRING
from agentsvc.http import LOGIN_PROVIDERS as LOGIN_PROVIDERS
from agentsvc.http import LOGINS as LOGINS
from agentsvc.http import OPEN_CONNECTIONS as OPEN_CONNECTIONS
from agentsvc.http import NewLogin as NewLogin
from agentsvc.http import answer_login as answer_login
from agentsvc.http import browser_of as browser_of
from agentsvc.http import check_login as check_login
from agentsvc.http import is_from_proxy as is_from_proxy
from agentsvc.http import keys_of as keys_of
from agentsvc.http import note_login as note_login
from agentsvc.http import read_form as read_form
