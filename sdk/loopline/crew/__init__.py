"""More than one run: agents by name, delegation to them, and what is made of their results."""

from loopline.crew.agents import AGENTS_FOLDER as AGENTS_FOLDER
from loopline.crew.agents import Agent as Agent
from loopline.crew.agents import Agents as Agents
from loopline.crew.agents import agent_role as agent_role
from loopline.crew.agents import load_agents as load_agents
from loopline.crew.agents import model_variable as model_variable
from loopline.crew.agents import read_agent as read_agent
from loopline.crew.delegates import Crew as Crew
from loopline.crew.delegates import CrewOptions as CrewOptions
from loopline.crew.dispatcher import AgentCall as AgentCall
from loopline.crew.dispatcher import AgentResult as AgentResult
from loopline.crew.dispatcher import Dispatcher as Dispatcher
from loopline.crew.handoff import Handoff as Handoff
from loopline.crew.handoff import parse_handoff as parse_handoff
from loopline.crew.pipeline import HookedRun as HookedRun
from loopline.crew.pipeline import NewCall as NewCall
from loopline.crew.pipeline import PostHook as PostHook
from loopline.crew.pipeline import PreHook as PreHook
from loopline.crew.pipeline import QualityPipeline as QualityPipeline
from loopline.crew.pipeline import SkipHooks as SkipHooks
from loopline.crew.pipeline import SkipRun as SkipRun
from loopline.crew.plan_first import PlanFirst as PlanFirst
from loopline.crew.quality import Quality as Quality
from loopline.crew.refine import Refine as Refine
from loopline.crew.verify import Verify as Verify
