"""Refs: what is printed parses to what printed it, and what is no ref is refused with the forms."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.errors import RefError
from loopline.refs import (
    ArtifactRef,
    BlockRef,
    CallRef,
    Characters,
    ConversationRef,
    DocumentRef,
    FileRef,
    HostedRef,
    KnowledgeRef,
    Lines,
    PlanRef,
    Ref,
    SkillRef,
    SourcesRef,
    SummaryRef,
    parse,
)
from loopline.timeline import body_types

places = st.integers(1, 10**6)
turn_ids = places.map("turn_{}".format)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
paths = names.filter(lambda name: name.strip() == name and name != "")
ends = st.tuples(places, places).map(sorted)
spans = (
    st.none()
    | ends.map(lambda pair: Lines(pair[0], pair[1]))
    | ends.map(lambda pair: Characters(pair[0], pair[1]))
)
maybe = st.none() | places
words = st.from_regex(r"[a-z0-9_-]{1,8}", fullmatch=True)
digests = st.none() | st.from_regex(r"[0-9a-f]{6,40}", fullmatch=True)

refs: st.SearchStrategy[Ref] = st.one_of(
    st.builds(
        BlockRef, turn_id=turn_ids, type=st.sampled_from(sorted(body_types())), n=maybe, span=spans
    ),
    st.builds(ArtifactRef, turn_id=turn_ids, name=names, version=maybe, span=spans),
    st.builds(PlanRef, plan_id=paths),
    st.builds(
        CallRef,
        turn_id=turn_ids,
        call_id=words,
        part=st.sampled_from(["call", "result"]),
        span=spans,
    ),
    st.builds(
        FileRef,
        turn_id=turn_ids,
        area=st.sampled_from(["files", "outputs", "user.attachments"]),
        path=names,
        version=maybe,
        span=spans,
    ),
    st.builds(
        SourcesRef,
        ranges=st.lists(ends.map(lambda pair: (pair[0], pair[1])), min_size=1, max_size=4).map(
            tuple
        ),
    ),
    st.builds(SummaryRef, turn_id=turn_ids, n=maybe, span=spans),
    st.builds(
        SkillRef,
        namespace=words,
        skill=words | st.sampled_from(["τσάι", "茶"]),
        digest=digests,
        span=spans,
        path=st.just("") | names,
    ),
    st.builds(KnowledgeRef, path=names, commit=digests, span=spans),
    st.builds(
        HostedRef,
        tenant=names,
        project=names,
        stage=names,
        user_id=names,
        conversation=names,
        turn_id=names,
        role=names,
        path=names,
    ),
    st.builds(DocumentRef, name=st.sampled_from(["conv.timeline.v1", "conv:sources_pool"])),
)


@given(refs)
def test_a_ref_parses_to_what_printed_it(ref: Ref) -> None:
    assert parse(str(ref)) == ref


@given(names, refs)
def test_a_ref_into_another_conversation_holds_the_ref_whole(conversation: str, ref: Ref) -> None:
    outer = ConversationRef(conversation=conversation, ref=ref)
    assert parse(str(outer)) == outer


@given(st.text(max_size=40))
def test_any_text_is_a_ref_or_is_refused(text: str) -> None:
    with contextlib.suppress(RefError):
        assert str(parse(text)).startswith(text.strip().partition(":")[0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tc",
        "tc:",
        "tc:turn_1",
        "tc:turn_1.c1.begun",
        "so:sources_pool[]",
        "so:sources_pool[3-1]",
        "zz:turn_1.x",
        "ks:",
        "ef:t:p:other:s:u:c:t:r:x",
        "artifact:conv.timeline.v2",
        "cv:c1",
        "fi:a",
    ],
)
def test_what_is_no_ref_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(RefError, match="refs look like"):
        parse(text)


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(RefError, match="ends before its start"):
        parse("ks:a.md#L9-L3")
