"""Git hosting services: a table for each provider, behind one service.

Start with `service`. `client` sends the requests, `checkout` fetches and pushes for the server itself.
`hosting` is the base class of all providers, which interprets their tables; `lookup` defines how tables
name paths and parts of responses, also for automations. `model` contains the results. GitHub and GitLab
are here, others are in the plugin `githosts`. Cloning into sandboxes is in
`conversations.starting.workspace`. Imports `settings`, `agentserver`, `domain` and `base`.
"""

from agentsvc.git.checkout import Checkout as Checkout
from agentsvc.git.checkout import DefaultBranch as DefaultBranch
from agentsvc.git.checkout import GitRemote as GitRemote
from agentsvc.git.client import ANSWER_MAX as ANSWER_MAX
from agentsvc.git.client import Answer as Answer
from agentsvc.git.client import GitApi as GitApi
from agentsvc.git.client import page_in as page_in
from agentsvc.git.client import refused as refused
from agentsvc.git.hosting import REPOSITORY_LOC as REPOSITORY_LOC
from agentsvc.git.hosting import Hosting as Hosting
from agentsvc.git.hosting import Item as Item
from agentsvc.git.hosting import Places as Places
from agentsvc.git.hosting import Task as Task
from agentsvc.git.hosting import bad_cursor as bad_cursor
from agentsvc.git.hosting import in_owner as in_owner
from agentsvc.git.hosting import next_number as next_number
from agentsvc.git.hosting import number_of as number_of
from agentsvc.git.lookup import Lookup as Lookup
from agentsvc.git.lookup import as_text as as_text
from agentsvc.git.lookup import case as case
from agentsvc.git.lookup import find as find
from agentsvc.git.lookup import find_part as find_part
from agentsvc.git.lookup import part_of as part_of
from agentsvc.git.lookup import parts as parts
from agentsvc.git.lookup import quoted as quoted
from agentsvc.git.lookup import quoted_path as quoted_path
from agentsvc.git.lookup import resolve as resolve
from agentsvc.git.microagents import MicroagentFile as MicroagentFile
from agentsvc.git.model import PAGE_MAX as PAGE_MAX
from agentsvc.git.model import Branch as Branch
from agentsvc.git.model import BranchQuery as BranchQuery
from agentsvc.git.model import File as File
from agentsvc.git.model import GitAccount as GitAccount
from agentsvc.git.model import Listing as Listing
from agentsvc.git.model import Number as Number
from agentsvc.git.model import OwnerType as OwnerType
from agentsvc.git.model import Repository as Repository
from agentsvc.git.model import RepositoryQuery as RepositoryQuery
from agentsvc.git.model import SortBy as SortBy
from agentsvc.git.service import GitProviders as GitProviders
