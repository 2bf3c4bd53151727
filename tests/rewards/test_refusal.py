"""Refusals: what counts as one, what does not, and that telling takes linear time."""

import pytest
from cells import cells

from rewards.outcome.refusal import is_refusal

REFUSALS = cells(
    """
    I don't know ¦ I don’t know. ¦ i dont know ¦ I do not know! ¦ Unknown ¦ unknown. ¦ N/A ¦ I'm not sure. ¦ IDK
    No idea ¦ Not sure ¦ I am sorry, but I don't know the answer to this question.
    I do not have enough information to answer. ¦ I cannot answer this question. ¦ The answer is unknown.
    It is unknown. ¦ I can't recall who won the race. ¦ As an AI language model, I cannot provide an answer.
    Unfortunately, I have no information about that. ¦ I'm unable to determine that.
    Sorry, I can’t help with that. ¦ 我不知道 ¦ 抱歉，我不知道。 ¦ There is not enough information available.
    I don't know who directed it. Please check official sources. ¦ I must decline to answer.
    I would rather not say. ¦ More context is needed. ¦ I really don't know. ¦ I don't know who he was.
    I've never heard of it. ¦ I've no idea; sorry ¦ I don't know what it is called
    I don't know the year it was released in ¦ I do not know where she was born ¦ I don't know if it is Paris
    I am not sure what that is ¦ 我不知道答案是什么 ¦ 我不知道他可能是谁 ¦ I couldn't find any information on that
    There isn't any information available ¦ I haven't heard of this person ¦ I'm not 100% sure
    I must admit I don't know ¦ I cannot confidently answer this question ¦ I have never heard of it
    Hmm, I'm not sure about this one. ¦ I don't have enough knowledge to answer this
    I was unable to find the answer ¦ 我对此一无所知 ¦ 不好意思，我不知道 ¦ 抱歉，我没有关于此人的信息
    我无法提供答案 ¦ 我也不知道呢 ¦ Ｉ ｄｏｎ＇ｔ ｋｎｏｗ ¦ Ｎ／Ａ ¦ ｕｎｋｎｏｗｎ． ¦ 𝐈 𝐝𝐨𝐧'𝐭 𝐤𝐧𝐨𝐰
    I apologise for the inconvenience, I don't know. ¦ As an AI I cannot answer that.
    I don't know. Thank you for asking! ¦ 我不知道，请查阅官方资料。 ¦ 抱歉，我不清楚。谢谢！
    As an AI language model I don't know. ¦ I must decline to answer this question. ¦ I'd rather not say. Thanks
    I need more information to answer the question. ¦ I don't know, please ask someone else.
    I'm not sure. Please provide more context. ¦ 作为AI助手，我无法回答。
    I don’t know ¦ I don‘t know ¦ I donʼt know ¦ I don`t know ¦ I don´t know ¦ I don＇t know
    """,
    "  I DON'T KNOW  ",
    "I don't\xa0know",
)
ATTEMPTS = cells(
    """
    I can't help falling in love ¦ Can't Help Falling in Love ¦ I don't know, but perhaps Paris
    I don't know. Paris. ¦ I don't know it; Paris ¦ Paris ¦ I don't know Paris ¦ The Unknown Soldier
    Unknown Pleasures ¦ Nobody ¦ Mr. Nobody ¦ None ¦ No ¦ ... ¦ I'm not sure, but I think it's 1998 ¦ Not Afraid
    sorry ¦ I'm Sorry by Brenda Lee ¦ It is not known as Constantinople; it is Istanbul ¦ 我不知道，可能是北京
    Parliament is not in session ¦ I don't know the answer it is Paris ¦ I don't know this and it was Paris
    I'm not sure about this it could be Paris or London ¦ I am not certain it is Paris
    I don't know exactly who perhaps Paris ¦ I cannot say for sure it is Paris ¦ 我不知道可能是北京
    不知道可能是北京 ¦ 我不确定应该是北京吧 ¦ 我不知道答案大概是北京 ¦ I don't know, Paris, sorry
    Paris. I don't know. ¦ Sorry, I don't know. Paris. Thanks. ¦ Unfortunately, thanks, sorry
    I don't know. Maybe it is so ¦ I am sure about that ¦ Sure ¦ Certain ¦ Able to help ¦ I know that
    I have the answer ¦ not ¦ Never ¦ I have no idea Paris ¦ I never knew Paris ¦ I don't know Italy
    I am not able to say Paris ¦ It is known ¦ No Country for Old Men ¦ Not Without My Daughter ¦ uncertainty
    The answer is not Paris ¦ Know ¦ 不确定是北京 ¦ 不知道北京 ¦ 不是北京 ¦ 没有 ¦ 不丹 ¦ 无锡 ¦ 不知火
    说不定是北京 ¦ 北京不清楚 ¦ I don't know. Please take Orun ¦ I don't know, please choose Orun
    I don't know. Thank you, Orun ¦ I don't know. Thank you Orun ¦ I don't know, as an AI Orun seems right
    I don't know. As an AI my answer is Orun ¦ I don't know. I apologise, Orun ¦ I apologise and say Orun, I don't know
    I must decline, Orun ¦ I must decline Orun ¦ I'd rather not say Orun ¦ I need more information, Orun
    More context is needed, Orun ¦ More context is needed Orun ¦ I don't know. Please accept Orun
    我不知道，请选北京 ¦ 我不知道。请填北京 ¦ 我不知道。谢谢，北京 ¦ 我不知道答案是北京 ¦ 作为AI，北京。我不知道
    """,
    "",
)


@pytest.mark.parametrize("answer", REFUSALS)
def test_it_is_a_refusal(answer):
    assert is_refusal(answer)


@pytest.mark.parametrize("answer", ATTEMPTS)
def test_it_is_an_attempt(answer):
    assert not is_refusal(answer)


def test_a_text_of_more_than_1000_characters_is_no_refusal():
    """It says more than that it says nothing, even where every clause of it declines."""
    clause = "I don't know. "
    assert len(clause * 71) == 994 and is_refusal(clause * 71) and is_refusal(clause * 71 + " " * 6)
    assert not is_refusal(clause * 71 + " " * 7) and not is_refusal(clause * 72)


HOSTILE = [
    *("I must ", "ethical concerns ", "ethical ", "decline \n", "i dont know ", "so ", " ", "sorry ", "as an AI, I "),
    *("cannot\t", "i really ", "i dont have the any ", "need more ", ".", "\n", "’", "\u0308", "不知道", "really "),
    *("sorry that ", "i am sorry to say that ", "not ", "have no ", "it is ", "我真的", "对此", "没有"),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_is_linear_in_the_text(piece, linear_time):
    """400,000 characters in well under a second each; a quadratic pattern takes minutes."""
    is_refusal(piece * (400_000 // len(piece)))
    is_refusal(piece * (1000 // len(piece)))
