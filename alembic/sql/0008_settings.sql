-- The bounds of months are read as text, which follows the session's DateStyle: in any but ISO no month
-- was found, so nothing would ever be dropped.
ALTER FUNCTION cuo_months() SET datestyle = 'ISO, YMD';
