"""Quotes: which sentences of the passages that were found answer a question in English."""

from loopline.search.quotes.english import STOP_WORDS as STOP_WORDS
from loopline.search.quotes.english import stem as stem
from loopline.search.quotes.english import stems as stems
from loopline.search.quotes.english import synonyms as synonyms
from loopline.search.quotes.english import tokens as tokens
from loopline.search.quotes.evidence import CitablePassage as CitablePassage
from loopline.search.quotes.evidence import Evidence as Evidence
from loopline.search.quotes.evidence import RankedPassage as RankedPassage
from loopline.search.quotes.evidence import ScoredSentence as ScoredSentence
from loopline.search.quotes.evidence import weigh as weigh
from loopline.search.quotes.question import Question as Question
from loopline.search.quotes.question import QuestionTerm as QuestionTerm
from loopline.search.quotes.question import parse_question as parse_question
from loopline.search.quotes.selection import Quote as Quote
from loopline.search.quotes.selection import choose_quotes as choose_quotes
from loopline.search.quotes.selection import on_one_line as on_one_line
from loopline.search.quotes.selection import without_markup as without_markup
from loopline.search.quotes.sentences import Sentence as Sentence
from loopline.search.quotes.sentences import code_sentences as code_sentences
from loopline.search.quotes.sentences import sentences as sentences
