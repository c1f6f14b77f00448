"""Files: what a user attaches, read and checked before anything of it is recorded."""

from loopline.files.attachment import Attachment as Attachment
from loopline.files.attachment import AttachmentCaps as AttachmentCaps
from loopline.files.attachment import AttachmentInput as AttachmentInput
from loopline.files.attachment import attachment_of as attachment_of
from loopline.files.attachment import check_text as check_text
from loopline.files.attachment import check_values as check_values
from loopline.files.attachment import read_attachments as read_attachments
from loopline.files.attachment import with_unique_names as with_unique_names
