"""Files: attachments of messages and the workspace of a turn. They are checked before they are recorded."""

from loopline.files.attachment import Attachment as Attachment
from loopline.files.attachment import AttachmentCaps as AttachmentCaps
from loopline.files.attachment import AttachmentInput as AttachmentInput
from loopline.files.attachment import AttachmentScanner as AttachmentScanner
from loopline.files.attachment import attachment_of as attachment_of
from loopline.files.attachment import check_text as check_text
from loopline.files.attachment import check_values as check_values
from loopline.files.attachment import decoded_text as decoded_text
from loopline.files.attachment import read_attachments as read_attachments
from loopline.files.attachment import with_unique_names as with_unique_names
from loopline.files.folder import Folder as Folder
from loopline.files.patch import apply_patch as apply_patch
from loopline.files.search import FileHits as FileHits
from loopline.files.search import FileQuery as FileQuery
from loopline.files.search import SearchReport as SearchReport
from loopline.files.search import search_files as search_files
from loopline.files.workspace import FileChange as FileChange
from loopline.files.workspace import OutputFile as OutputFile
from loopline.files.workspace import Workspace as Workspace
from loopline.files.workspace import WorkspaceLimits as WorkspaceLimits
from loopline.files.workspace import change_of as change_of
from loopline.files.workspace import describe_data as describe_data
from loopline.files.workspace import file_bodies as file_bodies
from loopline.files.workspace import sort_changes as sort_changes
