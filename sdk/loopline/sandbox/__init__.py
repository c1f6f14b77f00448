"""Programs in isolation: the contract, the limits, the messages, the result, and the port that runs them."""

from loopline.sandbox.call_server import too_deep as too_deep
from loopline.sandbox.execution import Execution as Execution
from loopline.sandbox.execution import ExecutionLimits as ExecutionLimits
from loopline.sandbox.execution import Failure as Failure
from loopline.sandbox.execution import Feature as Feature
from loopline.sandbox.execution import Language as Language
from loopline.sandbox.execution import LoggedSandbox as LoggedSandbox
from loopline.sandbox.execution import ProducedFile as ProducedFile
from loopline.sandbox.execution import ProgramEnd as ProgramEnd
from loopline.sandbox.execution import Sandbox as Sandbox
from loopline.sandbox.execution import ServedCall as ServedCall
from loopline.sandbox.execution import Session as Session
from loopline.sandbox.execution import StopProgram as StopProgram
from loopline.sandbox.execution import parse_contract as parse_contract
from loopline.sandbox.execution import report_failure as report_failure
from loopline.sandbox.result import ExecutionResult as ExecutionResult
from loopline.sandbox.result import result_of as result_of
from loopline.sandbox.result import shown_name as shown_name
